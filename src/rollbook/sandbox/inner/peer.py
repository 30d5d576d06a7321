"""Two sandboxes that communicate: one runs the tests, the other the candidate. Only plain data and handles cross.

Both ends work alike: a request names an object of the other end and an operation, the answer is a value or an
exception. While one end waits for its answer it serves the other's requests, so that a function handed over can be
called. The other end refers to an object by its number only; the tests' end gives access only to what the tests handed
over: calls of functions, public attributes and items of other objects. Where a function is under test, it should return
data, and the tests' end trusts no more of its result than that (`handles.py`).

What a function does to its arguments is also done to the caller's, and an argument that it returns is the caller's own
object. So code could empty a list before the tests look up the expected value in it: code that changes arguments, or
returns one of them, is noted (`has_side_effects`) and must pass with `copies` as well, where only its value counts.
Where a function is there to change its arguments (`in_place`), this applies only to one that returns a value too.

Exceptions cross as the nearest of Python's own, by the class and not by its name.
"""

import sys
from _thread import RLock  # the module threading costs every fork more
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn

from .channel import Channel
from .handles import (
    FUNCTION_ATTRIBUTES,
    OPERATIONS,
    REMOTE_KINDS,
    RETURNED_KINDS,
    SELF_METHODS,
    Handle,
    is_coroutine,
    is_data,
    kind_of,
)
from .plain_data import (
    ERRORS,
    NONE_KNOWN,
    READ_ATTRIBUTES,
    NotPlain,
    ReceivedArguments,
    iterate_containers,
    pack,
    pack_arguments,
    refill,
    unpack,
    unpack_arguments,
)

LOOP_ENDINGS = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Raised by a call, they would silently end a loop of the tests."""

_ERROR_NAMES = {kind: name for name, kind in ERRORS.items()}


class PeerGone(BaseException):
    """The other end has ended. Not an Exception, so that tests do not catch it."""


class TooMuchData(BaseException):
    """What the other end sent does not fit into our memory. Not an Exception, so that tests do not catch it."""


class OneProcess(BaseException):
    """The tests need an answer that only the candidate's own objects could give."""


class RemoteError(Exception):
    """An exception of the other end that is not one of Python's own."""


def describe_exception(error: BaseException, number: int) -> list[Any]:
    """Return an exception as plain data: the builtin class, its arguments, its own name, and its number here."""
    kind = type(error)
    known = next(base for base in type.mro(kind) if base in _ERROR_NAMES)
    plain = [arg for arg in error.args if issubclass(type(arg), str | int | float | bool | None)]
    args = [arg[:2000] if isinstance(arg, str) else arg for arg in plain]
    if issubclass(known, OSError) and len(args) == 2 and type(error.filename) is str:  # type: ignore[attr-defined]
        args.append(error.filename[:2000])  # type: ignore[attr-defined]
    return [_ERROR_NAMES[known], args, "" if kind is known else kind.__name__, number]


def rebuild_exception(
    raised: Any, unpack: Callable[[Any], Any], in_loop: bool, beyond: Sequence[type]
) -> BaseException:
    """Return the exception that was described; `beyond`: classes that may arrive although they are not Exceptions."""
    builtin_name, own_name = str(raised[0]), str(raised[2])
    args = [unpack(data) for data in raised[1]]
    base = ERRORS.get(builtin_name, RemoteError)
    if not issubclass(base, (Exception, *beyond)) or _ends_loop(base, in_loop):
        base, own_name = RemoteError, own_name or builtin_name
    if own_name:
        base = type(own_name, (RemoteError if base is Exception else base,), {"__module__": "__main__"})
    try:
        return base(*args)
    except Exception:  # noqa: BLE001 - some need other arguments than those in `args`
        return base.__new__(base, *args)


def wrap_own_exception(error: BaseException, in_loop: bool) -> BaseException:
    """Return an exception of this end that comes back from the other, wrapped if it would end more here than a call."""
    skip = getattr(sys.modules.get("unittest.case"), "SkipTest", ())
    if not (_ends_loop(type(error), in_loop) or isinstance(error, skip)):
        return error
    wrapper = RemoteError(f"{type(error).__name__} came out of the code")
    wrapper.__cause__ = error
    return wrapper


def _ends_loop(kind: type, in_loop: bool) -> bool:
    return issubclass(kind, LOOP_ENDINGS) and not (in_loop and issubclass(kind, StopIteration))


MAX_NESTED = 400
OUR_FRAMES = 12
"""How many frames one call back and forth takes; the recursion limit is raised by it, since the limit is the code's."""
MAX_OBJECTS = 1 << 20
EXITS = (SystemExit, KeyboardInterrupt)
ACCESSIBLE_OPERATIONS = frozenset({"__getitem__", "__len__", "iterate", "__next__", "__contains__", "__bool__"})
NAME_OPERATIONS = frozenset({"attribute", "__setattr__", "__delattr__"})


class Peer:
    """One end. `guarded`: this is the tests' end; `weak`: it may rest on answers of the candidate's objects; `copies`:
    changes that the code makes to its arguments are not applied, unless `in_place` and it returns None; `data`: only
    data of the candidate's objects is trusted; `objects`: the task says that these are what is under test; `stays`:
    whether objects of a class stay here although they hold data."""

    def __init__(
        self,
        channel: Channel,
        guarded: bool = False,
        *,
        weak: bool = False,
        copies: bool = False,
        in_place: bool = False,
        data: bool = False,
        objects: bool = False,
        stays: Callable[[type], bool] | None = None,
    ) -> None:
        self._channel, self.guarded, self._weak, self._copies, self._stays = channel, guarded, weak, copies, stays
        self._in_place = in_place
        self._kinds: Mapping[str, type[Handle]] = RETURNED_KINDS if data else REMOTE_KINDS
        self._handles: dict[tuple[int, str], Handle] = {}
        self._attributes: dict[tuple[int, str], tuple[Any, Exception | None]] = {}
        self._lock = RLock()
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._thrown: list[BaseException] = []
        self._caught: dict[int, tuple[BaseException, int]] = {}
        self._nested = 0
        self._returned_argument = False
        self._broken: BaseException | None = None
        self._access_error: Exception | None = None
        self._entries: frozenset[int] = frozenset()
        self._as_data, self._as_objects, self._objects_meant = "", objects, objects
        self.has_side_effects = False
        self.weakened = False
        self.requests = self.calls = 0

    def expose(self, value: Any) -> int:
        """Give an object a number under which the other end may use it."""
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._objects) >= MAX_OBJECTS:
                raise NotPlain("too many objects handed over")
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return number

    def receive_hello(self) -> dict[str, Any]:
        """Receive the objects that the other end hands over at the start, by name."""
        names = self._receive().get("hello")
        if not isinstance(names, dict) or not all(isinstance(number, int) for number in names.values()):
            raise self._break_off(PeerGone())
        self._entries = frozenset(names.values())
        return {name: self._handle(number, "function") for name, number in names.items()}

    def _handle(self, number: int, kind: str) -> Handle:
        """Return the same handle for the same object, so that `is` works."""
        if (number, kind) not in self._handles:
            self._handles[number, kind] = self._kinds[kind](self, number)
        return self._handles[number, kind]

    def reset_requests(self) -> None:
        """Forget the requests so far."""
        self.requests = self.calls = 0
        self._as_data, self._as_objects = "", self._objects_meant

    def claim(self, what: str, number: int, *args: Any) -> Any:
        """Ask the candidate's object for a judgement, where that is allowed."""
        self._rely_on(what)
        return self.ask(what, number, args, {})

    def _rely_on(self, what: str) -> None:
        if not self._weak:
            raise self._break_off(OneProcess(f"{what} of an object of the candidate's own class"))
        self.weakened = True

    def look(self, number: int, name: str) -> Any:
        """Return an attribute of the candidate's object: the same value at every read, until the code runs again."""
        if (number, name) not in self._attributes:
            self._attributes[number, name] = self._first_look(number, name)
        value, error = self._attributes[number, name]
        if error:
            raise error
        if not is_data(value):
            self._rely_on(f"{name}()")
        return value

    def _first_look(self, number: int, name: str) -> tuple[Any, Exception | None]:
        try:
            return self.ask("attribute", number, (name,), {}), None
        except Exception as error:  # noqa: BLE001 - a missing attribute is an answer too
            return None, error

    def refuse(self, what: str) -> NoReturn:
        """Refuse a question that only the other end could answer, even if its answers are allowed."""
        if self.guarded:
            raise self._break_off(OneProcess(f"{what} of an object of the candidate's own class"))
        raise TypeError(f"{what} of an object of the tests")

    def ask(self, what: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the other end do something, and wait for the result. One request at a time, from any thread."""
        with self._lock:
            self.requests += 1
            self.calls += what == "call"
            if self._kinds is REMOTE_KINDS:
                self._note_use(what, number, args, kwargs)
            packed = pack_arguments(args, self._pack)
            names = {name: self._pack(value) for name, value in kwargs.items()}
            containers = [*iterate_containers(args, self._numbers), *iterate_containers(kwargs.values(), self._numbers)]
            if self._attributes and what != "attribute":
                self._attributes = {}
            self._send({"do": what, "to": number, "args": packed, "named": names, "copies": self._copies})
            answer = self._await_answer()
            if self._attributes and what != "attribute":  # a function of the tests was called and read an attribute
                self._attributes = {}
            if answer.get("changed"):
                self._apply_changes(answer, containers)
            if "raised" in answer:
                raise self._exception(answer["raised"], what)
            return self._value(answer.get("value"), containers)

    def _note_use(self, what: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note whether tests of a class use it as one: they make an instance without arguments, add to it, or use
        attributes that data lacks. If not, they may mean a function that returns data, and an object in its place would
        judge itself."""
        if what in NAME_OPERATIONS:
            self._as_objects |= not (args[0] in READ_ATTRIBUTES or args[0].startswith("__"))
        elif what == "__setitem__":
            self._as_objects = True
        elif what == "call":
            self._as_objects |= number in self._entries and not (args or kwargs)
        elif what in SELF_METHODS or what == "iterate":
            self._as_data = self._as_data or what

    def _apply_changes(self, answer: dict[str, Any], containers: list[Any]) -> None:
        """Apply the changes that the other end made to its arguments to ours, if that is allowed."""
        is_work = self._in_place and "raised" not in answer and answer.get("value") is None
        if self._copies and not is_work:
            return
        for number, data in answer["changed"]:
            if not (isinstance(number, int) and 0 <= number < len(containers)):
                raise NotPlain("not an answer")
            refill(containers[number], self._unpack(data, containers))
        self.has_side_effects = self.has_side_effects or not is_work

    def _value(self, data: Any, containers: list[Any]) -> Any:
        """Return the unpacked value; with `copies`, it may not contain any of our objects."""
        self._returned_argument = False
        value = self._unpack(data, () if self._copies else containers)
        self.has_side_effects = self.has_side_effects or self._returned_argument
        return value

    def find_objection(self, error: BaseException | None) -> BaseException | None:
        """Return the real reason why the tests ended: they may have caught an exception that is final, or passed by a
        claim, or failed because the code had no access to an object of theirs."""
        if self._broken is None and error is None and self._as_data and not self._as_objects:
            with suppress(OneProcess):
                self._rely_on(self._as_data)
        if self._broken is None and error is not None and self._access_error:
            return OneProcess(str(self._access_error))
        return self._broken or error

    def threw(self, error: BaseException) -> bool:
        """Return whether a function of the tests that the other end called raised this error."""
        return any(error is thrown for thrown in self._thrown)

    def _break_off(self, error: BaseException) -> BaseException:
        self._broken = self._broken or error
        return error

    def _await_answer(self) -> dict[str, Any]:
        while True:
            frame = self._receive()
            if "do" not in frame:
                return frame
            self._serve(frame)

    def serve(self) -> None:
        """Answer requests until the other end is gone."""
        while True:
            try:
                frame = self._receive()
            except (PeerGone, TooMuchData):
                return
            self._serve(frame)

    def _serve(self, frame: dict[str, Any]) -> None:
        self._nested += 1
        if self._nested > 1:
            _raise_recursion_limit(OUR_FRAMES)
        try:
            if self._nested > MAX_NESTED:
                raise RecursionError("calls back and forth are nested too deep")
            answer = self._answer(frame)
        except Exception as error:  # noqa: BLE001 - the other end's request fails, not this end
            answer = {"raised": self._describe(error)}
        finally:
            if self._nested > 1:
                _raise_recursion_limit(-OUR_FRAMES)
            self._nested -= 1
        self._send(answer)

    def _answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        what, number = frame["do"], frame["to"]
        if not (isinstance(number, int) and 0 <= number < len(self._objects)):
            raise NotPlain(f"no object has the number {number}")
        target = self._objects[number]
        args = unpack_arguments(frame["args"], self._unpack)
        kwargs = {str(name): self._unpack(data) for name, data in frame["named"].items()}
        if self.guarded:
            self._check_access(what, target, args)
        received = ReceivedArguments([*args, *kwargs.values()], self._numbers)
        answer: dict[str, Any] = {}
        try:
            value = OPERATIONS[what](target, *args, **kwargs)
            answer["value"] = self._pack(value, NONE_KNOWN if frame.get("copies") else received.numbers)
        except Exception as error:  # noqa: BLE001 - changes made before it failed count
            answer["raised"] = self._describe(error)
        except (PeerGone, TooMuchData, OneProcess):
            raise
        except BaseException as error:
            if not (self.guarded or id(error) in self._caught):
                raise  # it ends the code itself
            answer["raised"] = self._describe(error)
        return answer | {"changed": received.pack_changes(self._pack)}

    def _check_access(self, what: str, target: Any, args: list[Any]) -> None:
        if is_accessible(what, target, args):
            return
        error = AttributeError(f"{what} of an object of the tests is not given away")
        if type(target).__module__ != "builtins":  # in one process it should not read those either
            self._access_error = error
        raise error

    def _describe(self, error: BaseException) -> list[Any]:
        """Describe an exception for the other end; one that came from there is returned as the same object."""
        if id(error) in self._caught:
            return ["back", self._caught[id(error)][1]]
        if self.guarded:
            self._thrown.append(error)
        return describe_exception(error, len(self._thrown) - 1)

    def _pack(self, value: Any, known: Mapping[int, int] = NONE_KNOWN) -> Any:
        return pack(value, self._pack_object, 0, known, self._stays)

    def _pack_object(self, value: Any) -> Any:
        if issubclass(type(value), Handle):
            return ["back", value._number]
        if is_coroutine(value):
            return ["coming", self.expose(value)]
        return ["handle", [self.expose(value), kind_of(value)]]

    def _unpack(self, data: Any, containers: Sequence[Any] = ()) -> Any:
        return unpack(data, lambda tag, content: self._unpack_tagged(tag, content, containers))

    def _unpack_tagged(self, tag: str, content: Any, containers: Sequence[Any]) -> Any:
        if tag == "handle":
            number, kind = content
            self._entries -= {number}  # it may be a method now, such as `copy`, which data has too
            return self._handle(int(number), kind)
        if tag == "yours" and isinstance(content, int) and 0 <= content < len(containers):
            self._returned_argument = True
            return containers[content]
        if tag == "coming":
            return self._await_remote(int(content))
        if tag == "back" and isinstance(content, int) and 0 <= content < len(self._objects):
            return self._objects[content]
        raise NotPlain("not a packed value")

    async def _await_remote(self, number: int) -> Any:
        """Await a coroutine of the other end."""
        return self.ask("await", number, (), {})

    def _exception(self, raised: Any, what: str) -> BaseException:
        if raised[0] == "back" and isinstance(raised[1], int) and 0 <= raised[1] < len(self._thrown):
            return wrap_own_exception(self._thrown[raised[1]], what == "__next__")
        error = rebuild_exception(raised, self._unpack, what == "__next__", () if self.guarded else EXITS)
        if not self.guarded:
            self._caught[id(error)] = error, int(raised[3])
        return error

    def _send(self, frame: dict[str, Any]) -> None:
        try:
            self._channel.send(frame)
        except OSError:
            raise self._break_off(PeerGone()) from None

    def _receive(self) -> dict[str, Any]:
        """Receive the next frame; PeerGone at the end or for an invalid one, TooMuchData for one beyond our memory."""
        try:
            frame, _ = self._channel.receive()
        except MemoryError:
            raise self._break_off(
                TooMuchData("the value that the code returned uses up the memory of the tests")
            ) from None
        except (OSError, EOFError, ValueError, RecursionError):
            raise self._break_off(PeerGone()) from None
        if not isinstance(frame, dict):
            raise self._break_off(PeerGone())
        return frame


def _raise_recursion_limit(frames: int) -> None:
    """Change the recursion limit relative to its present value, which the code may have set meanwhile."""
    with suppress(OverflowError, ValueError, RecursionError):
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)


def is_accessible(what: str, target: Any, args: list[Any]) -> bool:
    """Return whether the code may do this to an object of the tests: call or name a function, read items of others.

    Attributes are accessible only for objects of the tests' own classes: a generator's lead to its frame, so to all.
    """
    is_callable = callable(target) or isinstance(target, type)
    if (what == "call" and callable(target)) or (what == "await" and is_coroutine(target)):
        return True
    if what in ACCESSIBLE_OPERATIONS and not is_callable:
        return True
    if what != "attribute" or not isinstance(args[0], str):
        return False
    if isinstance(target, FunctionType | BuiltinFunctionType):
        return args[0] in FUNCTION_ATTRIBUTES
    return not is_callable and type(target).__module__ == "__main__" and not args[0].startswith("_")
