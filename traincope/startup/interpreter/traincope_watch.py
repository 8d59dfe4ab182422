"""Wait for torch, and call `traincope.startup.training` when the process trains.

It also notes how child processes end: one may be a rank that was killed. traincope is not imported before the process
trains: most processes never do, and this interpreter may not have it. Every start of Python under `traincope run`
bears the cost of the imports here.
"""

import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def _note(kind: str, what: str = "") -> None:
    """Write a note, as `traincope.startup.notes.write_note` does."""
    try:
        descriptor = os.open(os.environ["TRAINCOPE_NOTES"], os.O_WRONLY | os.O_APPEND)
    except (KeyError, OSError):
        return
    try:
        os.write(descriptor, (kind + " " + what + "\n").encode("utf-8", "surrogateescape"))
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _watch_children() -> None:
    """Note how children ended: subprocess, multiprocessing and asyncio all call `os.waitpid`.

    The reader of the notes finds the ranks by the process ids that ranks record. Process ids are reused, so successful
    ends are noted too. If subprocess was imported before `site` ran this module, its `poll` bypasses the wrapper.
    """
    original = os.waitpid

    def waitpid(pid: int, options: int, /) -> "tuple[int, int]":
        ended = original(pid, options)
        if ended[0]:
            _note_end(*ended)
            _note_stop_at_exit()
        return ended

    _copy_metadata(waitpid, original)
    os.waitpid = waitpid
    sys.modules[original.__module__].waitpid = waitpid  # type: ignore[attr-defined]


def _copy_metadata(ours: "Any", original: "Any") -> None:
    """Copy metadata as `functools.wraps` does, which is not imported yet. Pickle uses module and name."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(ours, name, getattr(original, name))
    ours.__wrapped__ = original


def _note_end(pid: int, status: int) -> None:
    """Note an exit or a killing signal. A stopped process has not ended."""
    if os.WIFSIGNALED(status):
        _note("child", f"{pid} {-os.WTERMSIG(status)} {time.time_ns()} {_this_host()}")
    elif os.WIFEXITED(status):
        _note("child", f"{pid} {os.WEXITSTATUS(status)} {time.time_ns()} {_this_host()}")


def _this_host() -> str:
    """Name and boot id of this host, as in `traincope.record.session.identity.this_host`."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return os.uname().nodename + " " + file.read().strip()
    except OSError:
        return os.uname().nodename


_noting_stops: "list[int]" = []
"""Process id of a process that notes its own stop. A forked child is another process."""


def _note_stop_at_exit() -> None:
    """Note the signal that stops a torchrun: an exception that ends it after its ranks. They get the signal one by one,
    and the one that dies first looks like the cause of the others' ends.

    An exit function replaces nothing. Only a process that has waited for a child needs one. While Python shuts down, an
    import may fail.
    """
    if _noting_stops != [os.getpid()] and not sys.is_finalizing():
        import atexit

        _noting_stops[:] = [os.getpid()]
        atexit.register(_note_stop)


def _note_stop() -> None:
    error = getattr(sys, "last_value", None)
    number = getattr(error, "sigval", None)
    if type(error).__name__ == "SignalException" and isinstance(number, int) and _noting_stops == [os.getpid()]:
        _note("stopped", f"{os.getpid()} {-number} {time.time_ns()} {_this_host()}")


ABOVE_VARIABLE = "TRAINCOPE_ABOVE"
"""Process id and state of a process that is a rank, or records, for the processes that it starts."""
STARTS, PREPARES, TRAINS = "starts", "prepares", "trains"
"""The first process of a launcher's rank starts. A process that records trains from its first process group or step on.
Before that, it may only prepare a model for the ranks that it starts.
"""


class _Training:
    """Begins the recording once, when the process trains.

    A process below one that trains is not one of the job's ranks, although it inherits their environment: it evaluates,
    or writes checkpoints. Below one that prepares, a process group makes a rank.
    """

    def __init__(self) -> None:
        self._pid = 0
        """The process that began. A forked child is another process."""
        self._end: Callable[[BaseException | None], None] | None = None
        """Ends its recording."""
        self._join_error: BaseException | None = None
        """What the latest `init_process_group` raised, until the recording begins."""

    def begin(self, *, has_group: bool, fails: bool = False) -> bool:
        """Begin if this process is a rank. Returns whether that is decided. `fails`: it ends now, without training."""
        if self._pid == os.getpid():
            if has_group:
                self._mark(TRAINS)
            return True
        above = _state_above()
        if _is_reading_main_again() or (above == PREPARES and not has_group):
            return False
        self._pid = os.getpid()
        self._join_error = None
        if above == TRAINS:
            _note("below")
            return True
        begin = _import_recorder()
        if begin is None:
            _note("no-traincope", sys.executable or "")
            return True
        self._mark(TRAINS if has_group else PREPARES)
        self._end = begin(lambda: self._mark(TRAINS), fails)
        return True

    def fail(self, error: BaseException) -> None:
        """Record a rank of a launcher that an error ends before it trains: the others may wait for it.

        Processes that a rank starts inherit its variables, so only the first one counts. It may still be a script or a
        launcher above the rank, so its record takes no place from a process that trains. Without torch the recorder
        would import it first. At a prompt, an error ends nothing.
        """
        if _is_first() and self._pid != os.getpid() and "torch" in sys.modules and not hasattr(sys, "ps1"):
            self.begin(has_group=False, fails=True)
            if self._end is not None:
                self._end(error)

    def joins(self, error: "BaseException | None") -> None:
        """Note that the process joined a group, or could not. It may try again: only at its end, nothing else has shown
        that it is a rank, and a function that started it may have caught the error.

        An error keeps its frames alive, and so what the training holds in them: it is kept only where it may be the
        end of a rank.
        """
        is_rank = "RANK" in os.environ and not _is_first() and not _state_above() and self._pid != os.getpid()
        if not is_rank:
            error = None
        if error is not None and self._join_error is None:
            import atexit

            atexit.register(self._fail_at_exit, os.getpid())
        self._join_error = error

    def _fail_at_exit(self, pid: int) -> None:
        error = self._join_error
        if error is not None and pid == os.getpid() != self._pid and not _state_above():
            self.begin(has_group=False, fails=True)
            if self._end is not None:
                self._end(error)

    def _mark(self, state: str) -> None:
        os.environ[ABOVE_VARIABLE] = f"{self._pid} {state}"


def _is_first() -> bool:
    """True in the first process of a launcher's rank, until it records."""
    return os.environ.get(ABOVE_VARIABLE) == f"{os.getpid()} {STARTS}"


def _watch_errors() -> None:
    """Record the error that ends a rank. A launcher itself may have its node's RANK, but no LOCAL_RANK."""
    if "RANK" not in os.environ or "LOCAL_RANK" not in os.environ or _state_above():
        return
    os.environ[ABOVE_VARIABLE] = f"{os.getpid()} {STARTS}"
    _note("rank", f"{os.getpid()} {os.environ['RANK']} {time.time_ns()} {_this_host()}")
    previous = sys.excepthook

    def excepthook(kind: "type[BaseException]", error: BaseException, traceback: "Any") -> None:
        try:
            _training.fail(error)
        finally:
            previous(kind, error, traceback)

    sys.excepthook = excepthook


def _import_recorder() -> "Callable[[Callable[[], None], bool], Callable[[BaseException | None], None] | None] | None":
    """Import what begins the recording; None if this interpreter has no traincope, or cannot import it, e.g. because no
    file descriptor is free.

    The training may have imported a module of its own under a name of the standard library. What it raises itself
    meanwhile, e.g. in a signal handler, passes.
    """
    finder = _StandardLibrary()
    sys.meta_path.insert(0, finder)
    try:
        from traincope.startup.training import begin
    except (ImportError, AttributeError, TypeError, OSError, MemoryError) as error:
        if _is_from_a_handler(error):
            raise
        return None
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    return begin


class _StandardLibrary:
    """Import hook that finds the standard library before files of the training that have such a name.

    It acts on the thread that imports the recorder, which would otherwise run these files.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        folder = os.path.dirname(os.__file__)
        self._places = [folder, os.path.join(folder, "lib-dynload")]

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if path is not None or name not in sys.stdlib_module_names or get_ident() != self._thread:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, self._places, target)


def _is_from_a_handler(error: BaseException) -> bool:
    """True if a function raised it that got the frame of its caller, as Python calls signal handlers."""
    place = error.__traceback__
    while place is not None:
        caller = place.tb_frame.f_back
        if caller is not None and any(value is caller for value in place.tb_frame.f_locals.values()):
            return True
        place = place.tb_next
    return False


def _state_above() -> str:
    """The state of the recording process that this one descends from; empty without one, or after its own `exec`."""
    pid, _, state = os.environ.get(ABOVE_VARIABLE, "").partition(" ")
    return "" if pid == str(os.getpid()) else state


def _is_reading_main_again() -> bool:
    """True in a spawned child while it imports its parent's script, whose optimizers do not train."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


_training = _Training()


def _watch_process_groups(module: "ModuleType") -> None:
    """Wrap `init_process_group` for good: scripts keep references to it, and pickle compares identities."""
    import functools

    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        if _is_first():
            _note("joins", f"{os.getpid()} {_this_host()}")
        try:
            result = original(*args, **kwargs)
        except (RuntimeError, ValueError) as error:  # torch's own are of these types
            _training.joins(error)
            raise
        _training.joins(None)
        _training.begin(has_group=True)
        return result

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _watch_optimizers(module: "ModuleType") -> None:
    import functools

    optimizer, original = module.Optimizer, module.Optimizer.__init__

    @functools.wraps(original)
    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:  # noqa: N807
        if _training.begin(has_group=False) and optimizer.__init__ is __init__:
            optimizer.__init__ = original
        original(self, *args, **kwargs)

    optimizer.__init__ = __init__
    _note("torch")


class _Watch:
    """Import hook that acts on a module right after its code ran, and then restores its loader."""

    def __init__(self, actions: "dict[str, Callable[[ModuleType], None]]") -> None:
        self._actions = actions

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if name not in self._actions:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._follow(spec.loader, name)
                return spec  # type: ignore[no-any-return]
        return None

    def _follow(self, loader: "Any", name: str) -> None:
        from importlib.machinery import SourceFileLoader, SourcelessFileLoader

        if not isinstance(loader, (SourceFileLoader, SourcelessFileLoader)):
            return  # one loader of another kind may serve many modules

        def exec_module(module: "ModuleType") -> None:
            del loader.exec_module
            loader.exec_module(module)
            self._act(name, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def _act(self, name: str, module: "ModuleType") -> None:
        action = self._actions.pop(name, None)
        if action is not None:
            action(module)
        if not self._actions and self in sys.meta_path:
            sys.meta_path.remove(self)


def watch() -> None:
    """Begin a recording when this process trains."""
    _note("python")
    if os.environ.get("TRAINCOPE", "").lower() in ("off", "0"):
        return
    _watch_children()
    _watch_errors()
    actions = {
        "torch.distributed.distributed_c10d": _watch_process_groups,
        "torch.optim.optimizer": _watch_optimizers,
    }
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    if actions:
        sys.meta_path.insert(0, _Watch(actions))  # type: ignore[arg-type]
