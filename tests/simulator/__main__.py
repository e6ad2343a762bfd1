"""`python -m simulator`, or `make simulate`: the policies on hosts that do not exist."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pronk.protocol.limits import ModelLimits
from pronk.scheduler.policies import eviction, growth, replicas

from . import traces
from .report import HEADER, line
from .world import GIB, Model, World, gpus, processors

TRACES: dict[str, Callable[[World], None]] = {
    "arrivals": lambda world: traces.arrivals(world, 2.0),
    "bursts": lambda world: traces.bursts(world, 300),
    "heavy": lambda world: traces.heavy(world, 500),
    "talks": lambda world: traces.talks(world, 60),
    "exchange": lambda world: traces.exchange(world, 1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4, help="GPUs of 24 GiB")
    parser.add_argument("--models", type=int, default=8, help="of 4 to 18 GiB")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of simulated time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-replicas", type=int, help="of each model")
    parser.add_argument("--grow-after", type=float, default=replicas.GROW_AFTER)
    parser.add_argument("--surplus-idle", type=float, default=replicas.SURPLUS_IDLE)
    parser.add_argument("--unused", type=float, default=replicas.UNUSED)
    parser.add_argument("--stay-per-load", type=float, default=eviction.STAY_PER_LOAD)
    parser.add_argument("traces", nargs="*", choices=[[], *TRACES], default=[])
    asked = parser.parse_args()
    replicas.GROW_AFTER = asked.grow_after
    replicas.SURPLUS_IDLE = asked.surplus_idle
    growth.UNUSED = asked.unused
    eviction.STAY_PER_LOAD = asked.stay_per_load
    limits = ModelLimits(max_replicas=asked.max_replicas)
    models = [
        Model(f"{number:064x}", weights=(4 + 2 * (number % 8)) * GIB, limits=limits)
        for number in range(asked.models)
    ]
    print(
        f"{asked.devices} GPUs of 24 GiB, {asked.models} models, {asked.workers} workers, "
        f"{asked.seconds:g} s\n"
    )
    print(*HEADER, sep="\n")
    for name in asked.traces or TRACES:
        devices = [*gpus(asked.devices), processors()]
        world = World(devices, models, asked.workers, seed=asked.seed)
        TRACES[name](world)
        print(line(name, world.run(asked.seconds), asked.devices, world.now), flush=True)


if __name__ == "__main__":
    main()
