"""Writing to a disk so that neither a kill nor a power cut leaves half of anything, and no link is
followed to another place.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ...protocol.errors import Code, PronkError

_log = logging.getLogger(__name__)

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
"""What Ollama gives to its own, less the umask."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EEXIST)
_NO_LINKS = (
    errno.EPERM,
    errno.EXDEV,
    errno.EMLINK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)
_COPIED = 16 * 1024 * 1024


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turns what the operating system says into what helps the person who asked for a change.

    Raises `PronkError` in the place of OSError; the log has the path.
    """
    try:
        yield
    except OSError as error:
        _log.warning("the library could not be changed: %s", error)
        raise _refusal(error) from error


def _refusal(error: OSError) -> PronkError:
    if error.errno in _FULL:
        return PronkError(
            Code.STORAGE_FULL,
            "the disk of the model library is full; delete models that nobody needs, or ask "
            "whoever runs this server for more room",
        )
    if error.errno in _FORBIDDEN:
        return PronkError(
            Code.UNAVAILABLE,
            "the model library cannot be changed: the user that Pronk runs as may not write there; "
            "whoever runs this server can give that user write permission, or set PRONK_MODELS to "
            "a directory of its own",
        )
    if error.errno in _IN_THE_WAY:
        return PronkError(
            Code.UNAVAILABLE,
            "the model library cannot be changed: a link, a file or a directory stands in another "
            "one's place; the server's log says where",
        )
    return PronkError(
        Code.INTERNAL,
        f"the disk of the model library reported an error ({error.strerror}); see the server's log",
    )


def make_directory(path: Path) -> None:
    """Creates a directory, and those above it, unless it is there. Raises OSError."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def require_directory(path: Path) -> None:
    """Creates a directory unless it is there. Raises OSError where anything else has its name."""
    with suppress(FileExistsError):
        path.mkdir(mode=DIRECTORY_MODE)
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is a link or a file", str(path))


@contextmanager
def directory_below(top: Path, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """A descriptor of the directory `parts` below `top`; no link below `top` is followed.

    Raises OSError where one is in the way.
    """
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, DIRECTORY_MODE, dir_fd=descriptor)
                    os.fsync(descriptor)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Brings a directory's entries to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create(path: Path) -> BinaryIO:
    """A file that is not there yet, open for writing. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    return open(descriptor, "wb")  # noqa: PTH123


def write_new(path: Path, content: bytes) -> None:
    """Writes a file that is not there yet, and brings it to the disk. Raises OSError."""
    with create(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def new_name() -> str:
    """A name for a file that nobody else has."""
    return secrets.token_hex(8)


def free_bytes(path: Path) -> int:
    """Bytes that there is room for on the disk of `path`, which may be still to be created."""
    while not path.exists() and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def is_regular(path: Path) -> os.stat_result | None:
    """The status of a regular file; None for a link, for anything else, and for nothing."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def put_beside(source: Path, target: Path, between: Path) -> bool:
    """Makes `source` appear as `target`, which is replaced if it is there, at one instant.

    As a second name of the same file where the file system knows such; else it is moved, or copied
    to another file system, under the unused path `between` first. True if `source` is still there.
    Raises OSError.
    """
    try:
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            os.link(source, between, follow_symlinks=False)
            try:
                between.replace(target)
            finally:
                # Where both are names of one file already, rename does nothing and leaves both.
                between.unlink(missing_ok=True)
        return True
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
        return True
    return False


def _copy(source: Path, target: Path) -> None:
    """For a mount point between two directories of one library."""
    # Ollama deletes what has a name like this when it starts: then there is an error, and no harm.
    between = target.with_name(f"{target.name}-{new_name()}")
    try:
        with source.open("rb") as old, create(between) as new:
            shutil.copyfileobj(old, new, _COPIED)
            new.flush()
            os.fsync(new.fileno())
        between.replace(target)
    except OSError:
        between.unlink(missing_ok=True)
        raise
