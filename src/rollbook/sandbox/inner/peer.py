"""Two sandboxes that communicate: one runs the tests, the other the candidate. Only plain data and handles cross.

Both ends are the same: a request names an object of the other end and what to do with it, the answer is a value or an
exception. While one end waits for its answer it serves the other's requests, so that a function handed over can be
called. An object is known to the other end by its number, never by itself; the tests' end gives access only to what
the tests handed over: calls of functions, public attributes and items of other objects. Where a function is under
test, what it gives back should be data, and the tests' end believes no more of it than that (`handles.py`).

What a function does to its arguments is done to the caller's as well, and what it gives back of them is the caller's
own. So code could empty a list before the tests look up in it what is right: code that returns a value and changes
arguments too, or returns one of them, is noted (`has_side_effects`) and must pass with `copies` as well, where only
its value counts.

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
    DATA_ATTRIBUTES,
    ERRORS,
    NONE_KNOWN,
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
"""Out of a call, they would end a loop of the tests as if all were well."""

_ERROR_NAMES = {kind: name for name, kind in ERRORS.items()}


class PeerGone(BaseException):
    """The other end is no more: nothing that tests catch."""


class OneProcess(BaseException):
    """The tests ask what only the candidate's own objects could answer."""


class RemoteError(Exception):
    """An exception of the other end that is not one of Python's own."""


def describe_exception(error: BaseException, number: int) -> list[Any]:
    """An exception as plain data: the builtin class, what it was given, its own name, and its number here."""
    kind = type(error)
    known = next(base for base in type.mro(kind) if base in _ERROR_NAMES)
    plain = [arg for arg in error.args if issubclass(type(arg), str | int | float | bool | None)]
    given = [arg[:2000] if isinstance(arg, str) else arg for arg in plain]
    if issubclass(known, OSError) and len(given) == 2 and type(error.filename) is str:  # type: ignore[attr-defined]
        given.append(error.filename[:2000])  # type: ignore[attr-defined]
    return [_ERROR_NAMES[known], given, "" if kind is known else kind.__name__, number]


def rebuild_exception(
    raised: Any, unpack: Callable[[Any], Any], looping: bool, beyond: Sequence[type]
) -> BaseException:
    """The exception that was described; `beyond`: which may arrive though they are no Exception."""
    known, own = str(raised[0]), str(raised[2])
    given = [unpack(data) for data in raised[1]]
    base = ERRORS.get(known, RemoteError)
    if not issubclass(base, (Exception, *beyond)) or _ends_loop(base, looping):
        base, own = RemoteError, own or known
    if own:
        base = type(own, (RemoteError if base is Exception else base,), {"__module__": "__main__"})
    try:
        return base(*given)
    except Exception:  # noqa: BLE001 - some want other arguments than they show
        return base.__new__(base, *given)


def wrap_own_exception(error: BaseException, looping: bool) -> BaseException:
    """An exception of this end's own that comes out of the other, unless it would end more here than a call."""
    skip = getattr(sys.modules.get("unittest.case"), "SkipTest", ())
    if not (_ends_loop(type(error), looping) or isinstance(error, skip)):
        return error
    instead = RemoteError(f"{type(error).__name__} came out of the code")
    instead.__cause__ = error
    return instead


def _ends_loop(kind: type, looping: bool) -> bool:
    return issubclass(kind, LOOP_ENDINGS) and not (looping and issubclass(kind, StopIteration))


MAX_NESTED = 400
OUR_FRAMES = 12
"""What one call back and forth takes of Python's recursion limit, for which it makes room: the limit is the code's."""
MAX_OBJECTS = 1 << 20
EXITS = (SystemExit, KeyboardInterrupt)
ACCESSIBLE_OPERATIONS = frozenset({"__getitem__", "__len__", "iterate", "__next__", "__contains__", "__bool__"})
NAME_OPERATIONS = frozenset({"attribute", "__setattr__", "__delattr__"})


class Peer:
    """One end. `guarded`: this is the tests' end; `weak`: it may rest on what the candidate's objects say; `copies`:
    what the code does to its arguments beside its value stays where it is; `data`: of the candidate's objects only data
    is believed; `stays`: whether objects of a class stay here though they hold data."""

    def __init__(
        self,
        channel: Channel,
        guarded: bool = False,
        *,
        weak: bool = False,
        copies: bool = False,
        data: bool = False,
        stays: Callable[[type], bool] | None = None,
    ) -> None:
        self._channel, self.guarded, self._weak, self._copies, self._stays = channel, guarded, weak, copies, stays
        self._kinds: Mapping[str, type[Handle]] = RETURNED_KINDS if data else REMOTE_KINDS
        self._handles: dict[tuple[int, str], Handle] = {}
        self._looks: dict[tuple[int, str], tuple[Any, Exception | None]] = {}
        self._lock = RLock()
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._thrown: list[BaseException] = []
        self._caught: dict[int, tuple[BaseException, int]] = {}
        self._nested = 0
        self._gave_back = False
        self._broken: BaseException | None = None
        self._denied: Exception | None = None
        self._entries: frozenset[int] = frozenset()
        self._as_data, self._as_objects = "", False
        self.has_side_effects = False
        self.weakened = False
        self.calls = 0

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
        """What the other end hands over at the start, by name."""
        names = self._receive().get("hello")
        if not isinstance(names, dict) or not all(isinstance(number, int) for number in names.values()):
            raise self._break_off(PeerGone())
        self._entries = frozenset(names.values())
        return {name: self._handle(number, "function") for name, number in names.items()}

    def _handle(self, number: int, kind: str) -> Handle:
        """The same for the same object, so that `is` tells whether it is."""
        if (number, kind) not in self._handles:
            self._handles[number, kind] = self._kinds[kind](self, number)
        return self._handles[number, kind]

    def reset_calls(self) -> None:
        """Nothing was asked yet."""
        self.calls, self._as_data, self._as_objects = 0, "", False

    def claim(self, what: str, number: int, *given: Any) -> Any:
        """Ask the candidate's object for a judgement, where that is allowed."""
        self._rely_on(what)
        return self.ask(what, number, given, {})

    def _rely_on(self, what: str) -> None:
        if not self._weak:
            raise self._break_off(OneProcess(f"{what} of an object of the candidate's own class"))
        self.weakened = True

    def look(self, number: int, name: str) -> Any:
        """What the candidate's object holds under a name: the same at every look, until the code is at work again."""
        if (number, name) not in self._looks:
            self._looks[number, name] = self._first_look(number, name)
        value, error = self._looks[number, name]
        if error:
            raise error
        if not is_data(value):
            self._rely_on(f"{name}()")
        return value

    def _first_look(self, number: int, name: str) -> tuple[Any, Exception | None]:
        try:
            return self.ask("attribute", number, (name,), {}), None
        except Exception as error:  # noqa: BLE001 - that there is none is an answer too
            return None, error

    def refuse(self, what: str) -> NoReturn:
        """What nobody but the other end could tell, and not even its word is asked for."""
        if self.guarded:
            raise self._break_off(OneProcess(f"{what} of an object of the candidate's own class"))
        raise TypeError(f"{what} of an object of the tests")

    def ask(self, what: str, number: int, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Have the other end do something, and wait for what comes of it. One at a time, whatever the thread."""
        with self._lock:
            self.calls += what == "call"
            if self._kinds is REMOTE_KINDS:
                self._note_use(what, number, given, named)
            packed = pack_arguments(given, self._pack)
            names = {name: self._pack(value) for name, value in named.items()}
            ours = [*iterate_containers(given, self._numbers), *iterate_containers(named.values(), self._numbers)]
            if self._looks and what != "attribute":
                self._looks = {}
            self._send({"do": what, "to": number, "args": packed, "named": names, "copies": self._copies})
            answer = self._await_answer()
            if self._looks and what != "attribute":  # a function of the tests' was called and looked at something
                self._looks = {}
            if answer.get("changed"):
                self._apply_changes(answer, ours)
            if "raised" in answer:
                raise self._exception(answer["raised"], what)
            return self._value(answer.get("value"), ours)

    def _note_use(self, what: str, number: int, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Whether tests of a class use it as one: made of nothing, or asked for what no data has. If not, they may have
        meant a function that gives back data, and an object of the code's in its place would judge itself."""
        if what in NAME_OPERATIONS:
            self._as_objects |= not (given[0] in DATA_ATTRIBUTES or given[0].startswith("__"))
        elif what == "call":
            self._as_objects |= number in self._entries and not (given or named)
        elif what in SELF_METHODS or what == "iterate":
            self._as_data = self._as_data or what

    def _apply_changes(self, answer: dict[str, Any], ours: list[Any]) -> None:
        """What the other end did to its arguments is done to ours, if it may be."""
        beside = "raised" in answer or answer.get("value") is not None
        if beside and self._copies:
            return
        for number, data in answer["changed"]:
            if not (isinstance(number, int) and 0 <= number < len(ours)):
                raise NotPlain("not an answer")
            refill(ours[number], self._unpack(data, ours))
        self.has_side_effects = self.has_side_effects or beside

    def _value(self, data: Any, ours: list[Any]) -> Any:
        """What came of it; where copies are wanted, nothing of ours may be in it."""
        self._gave_back = False
        value = self._unpack(data, () if self._copies else ours)
        self.has_side_effects = self.has_side_effects or self._gave_back
        return value

    def find_objection(self, ended: BaseException | None) -> BaseException | None:
        """Why the tests ended, told better: they may have caught what they cannot undo, or passed by what is a claim,
        or failed since the code could not get at something of theirs."""
        if self._broken is None and ended is None and self._as_data and not self._as_objects:
            with suppress(OneProcess):
                self._rely_on(self._as_data)
        if self._broken is None and ended is not None and self._denied:
            return OneProcess(str(self._denied))
        return self._broken or ended

    def threw(self, error: BaseException) -> bool:
        """Whether a function of the tests' that the other end called has ended by this."""
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
        """Do what the other end asks, until it is gone."""
        while True:
            try:
                frame = self._receive()
            except PeerGone:
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
        except Exception as error:  # noqa: BLE001 - the other end's request fails, not we
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
        given = unpack_arguments(frame["args"], self._unpack)
        named = {str(name): self._unpack(data) for name, data in frame["named"].items()}
        if self.guarded:
            self._check_access(what, target, given)
        arrived = ReceivedArguments([*given, *named.values()], self._numbers)
        answer: dict[str, Any] = {}
        try:
            value = OPERATIONS[what](target, *given, **named)
            answer["value"] = self._pack(value, NONE_KNOWN if frame.get("copies") else arrived.numbers)
        except Exception as error:  # noqa: BLE001 - what it did before it failed is done
            answer["raised"] = self._describe(error)
        except (PeerGone, OneProcess):
            raise
        except BaseException as error:
            if not (self.guarded or id(error) in self._caught):
                raise  # the code's own end
            answer["raised"] = self._describe(error)
        return answer | {"changed": arrived.pack_changes(self._pack)}

    def _check_access(self, what: str, target: Any, given: list[Any]) -> None:
        if is_accessible(what, target, given):
            return
        denied = AttributeError(f"{what} of an object of the tests is not given away")
        if type(target).__module__ != "builtins":  # what it would find in a generator is not for it in one process
            self._denied = denied
        raise denied

    def _describe(self, error: BaseException) -> list[Any]:
        """An exception for the other end, which may give back the very one that came from there."""
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

    def _unpack(self, data: Any, ours: Sequence[Any] = ()) -> Any:
        return unpack(data, lambda tag, held: self._unpack_tagged(tag, held, ours))

    def _unpack_tagged(self, tag: str, held: Any, ours: Sequence[Any]) -> Any:
        if tag == "handle":
            number, kind = held
            self._entries -= {number}  # it may stand for a method now, such as `copy`, which data has too
            return self._handle(int(number), kind)
        if tag == "yours" and isinstance(held, int) and 0 <= held < len(ours):
            self._gave_back = True
            return ours[held]
        if tag == "coming":
            return self._await_remote(int(held))
        if tag == "back" and isinstance(held, int) and 0 <= held < len(self._objects):
            return self._objects[held]
        raise NotPlain("not a packed value")

    async def _await_remote(self, number: int) -> Any:
        """A coroutine of the other end, as one of ours."""
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
        """The next frame; Gone at the end, or when it is no frame: a large one ends at our own memory's limit."""
        try:
            frame, _ = self._channel.receive()
        except (OSError, EOFError, ValueError, RecursionError, MemoryError):
            raise self._break_off(PeerGone()) from None
        if not isinstance(frame, dict):
            raise self._break_off(PeerGone())
        return frame


def _raise_recursion_limit(frames: int) -> None:
    """For the recursion of the code, which may have set another limit meanwhile."""
    with suppress(OverflowError, ValueError, RecursionError):
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)


def is_accessible(what: str, target: Any, given: list[Any]) -> bool:
    """The tests' own objects: a function may be called and asked for its name, another object read by its items.

    Attributes are shown only of objects of the tests' own classes: a generator's lead to its frame, and so to all.
    """
    plain = callable(target) or isinstance(target, type)
    if (what == "call" and callable(target)) or (what == "await" and is_coroutine(target)):
        return True
    if what in ACCESSIBLE_OPERATIONS and not plain:
        return True
    if what != "attribute" or not isinstance(given[0], str):
        return False
    if isinstance(target, FunctionType | BuiltinFunctionType):
        return given[0] in FUNCTION_ATTRIBUTES
    return not plain and type(target).__module__ == "__main__" and not given[0].startswith("_")
