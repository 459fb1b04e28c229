"""Several processes: ranks, barriers, seeds that are the same in every process, and the lock of an output folder."""

import hashlib
import os
import shlex
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from core.errors import InputError, first_line

if TYPE_CHECKING:
    from accelerate import PartialState

LONGEST_WAIT = timedelta(days=1)  # timeout of barriers; a failed process ends the run at once
_LOCKS: dict[Path, FileLock] = {}


def process() -> tuple[int, int]:
    """Rank of this process and number of processes, as `torchrun` and `accelerate launch` set them."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def connected() -> "PartialState":
    """Accelerate's process state; the first call connects the processes and selects the GPU of this one."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)


def wait_for_all() -> None:
    """Wait until every process has reached this call.

    Raises:
        InputError: another process has stopped.
    """
    if process()[1] > 1:
        try:
            connected().wait_for_everyone()
        except RuntimeError as error:
            reason = f"{first_line(error):.100}"
            raise InputError(f"another process has stopped; its message says why ({reason}).") from error


def gather(value: Any) -> list[Any]:
    """Gather the values of all processes, in rank order; waits and raises like `wait_for_all`."""
    if process()[1] == 1:
        return [value]
    from accelerate.utils import gather_object

    wait_for_all()
    return gather_object([value])


def check_launch() -> None:
    """Reject `accelerate launch --num_processes N` where it starts only one process.

    It starts N processes only on several GPUs. Otherwise it sets `MASTER_ADDR` as for N processes, but not
    `WORLD_SIZE`, and starts a single process.
    """
    if not {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys() or "WORLD_SIZE" in os.environ:
        return
    module = sys.modules["__main__"].__spec__
    script = ["-m", module.name] if module else sys.argv[:1]
    raise InputError(
        "`accelerate launch --num_processes N` starts only one process on a machine without several GPUs. For N "
        f"processes, run `torchrun --nproc_per_node N {shlex.join([*script, *sys.argv[1:]])}`; for a single process, "
        "leave out `--num_processes` and unset `MASTER_ADDR`."
    )


def lock_folder(folder: Path, flag: str = "--run.dir") -> None:
    """Lock the output folder of a command until this process ends. Only rank 0 takes the lock.

    Args:
        folder: created if it does not exist.
        flag: the flag that names the folder, for messages.

    Raises:
        InputError: another process uses the folder, or it cannot be created.
    """
    if process()[0] != 0 or folder.resolve() in _LOCKS:
        return
    lock, holder = FileLock(folder / ".lock", blocking=False), folder / ".lock-holder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
    except Timeout as error:
        name = f" ({holder.read_text()})" if holder.exists() else ""
        raise InputError(
            f"another process{name} is using {folder}; wait for it to finish, or use another `{flag}`."
        ) from error
    except OSError as error:
        raise InputError(f"`{flag}`: {folder} cannot be used ({error.strerror}); choose another folder.") from error
    _LOCKS[folder.resolve()] = lock


def seed_of(*parts: object) -> int:
    """A 63-bit seed that depends only on `parts`, not on the process, the batch or the order of calls."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1
