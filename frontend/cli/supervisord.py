"""What `pronk serve` becomes: supervisord itself, which here reacts to signals at once, and whose
exit status tells how it ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from supervisor import events, process, supervisord  # pyright: ignore[reportMissingTypeStubs]
from supervisor.medusa.asyncore_25 import (  # pyright: ignore[reportMissingTypeStubs]
    socket_map,
)
from supervisor.options import ServerOptions  # pyright: ignore[reportMissingTypeStubs]
from supervisor.process import (  # pyright: ignore[reportMissingTypeStubs]
    ProcessStates,
    Subprocess,
)

from . import console


class Alarm:
    """Ends supervisord's wait for events when a signal comes, such as that of a child's end.

    Its loop waits up to a second at a time, and since PEP 475 no signal interrupts that: starting
    would take a second longer, and stopping up to one for each kind of process. Registers itself
    where supervisord looks for its own sockets, and is set once to begin with.
    """

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        os.write(writing, b"\0")
        socket_map[self._reading] = self

    def readable(self) -> bool:
        """Whether supervisord's loop shall wait for the signals' end of the pipe: always."""
        return True

    def writable(self) -> bool:
        """Whether it shall wait until something can be written: never."""
        return False

    def handle_read_event(self) -> None:
        """Empties the pipe; that the loop woke up is all that was wanted."""
        os.read(self._reading, 4096)


class Exited(events.ProcessStateExitedEvent):
    """Supervisord's event of a process's end, which tells its exit status as well: `status`, -1
    after a signal.
    """

    def get_extra_values(self) -> list[tuple[str, int]]:
        """What the event tells beside the names of the process."""
        return [*super().get_extra_values(), ("status", self.process.exitstatus)]


class Options(ServerOptions):
    """Supervisord's options, through which it also takes its signals."""

    def get_signal(self) -> int | None:
        """The next signal. A hang-up ends the server like every other program: supervisord takes it
        for a wish to start everything anew, and would outlive its terminal.
        """
        number = super().get_signal()
        return signal.SIGTERM if number == signal.SIGHUP else number


class Clock:
    """The time by which supervisord counts how long its children take to start and to end.

    It looks at least once a second. Where much more has gone by, it stood still itself, and so did
    its children most likely: those that end properly are not to be killed for that.
    """

    LONGEST_TURN = 1.5
    """Seconds that count between two looks at most."""

    def __init__(self) -> None:
        self._time = time.time()
        self._looked = time.monotonic()

    def time(self) -> float:
        """Unix time, but for standstills. It never goes backwards."""
        before, self._looked = self._looked, time.monotonic()
        self._time += min(self._looked - before, self.LONGEST_TURN)
        return self._time


def main() -> None:
    """Runs supervisord with this process's arguments until it is told to end, or cannot go on."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup. Supervisord sets its own handler, so the signal has to be kept away from it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    Alarm()
    supervisord.ServerOptions = Options
    process.time = Clock()
    events.register("PROCESS_STATE_EXITED", Exited)
    Subprocess.event_map[ProcessStates.EXITED] = Exited
    try:
        supervisord.main(sys.argv[1:])
    except (ValueError, OSError) as error:  # the listening socket; all else was checked before
        console.say(2, f"pronk: {error}")
        sys.exit(1)
    sys.exit(console.exit_status())


if __name__ == "__main__":
    main()
