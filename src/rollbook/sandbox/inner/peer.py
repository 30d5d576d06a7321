"""Two sandboxes that speak: one runs the tests, the other the candidate. Only plain data and handles cross.

Both ends are the same: a request names an object of the other end and what to do with it, the answer is a value or an
exception. While one end waits for its answer it serves the other's requests, so that a function handed over can be
called. An object is known to the other end by its number, never by itself; the tests' end gives away of its objects
only what the tests handed over: calls of functions, public attributes and items of other objects. Where a function is
under test, what it gives back should be data, and the tests' end believes no more of it than that (`returned.py`).

What a function does to its arguments is done to the caller's as well, and what it gives back of them is the caller's
own. So code could empty a list before the tests look up in it what is right: whoever returns a value and changes
arguments too, or returns one of them, is noted (`beside`) and must pass with `copies` as well, where only its value
counts.
"""

import sys
from _thread import RLock  # the module threading costs every fork more
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn

from .arguments import Arrived, containers, pack_given, refill, unpack_given
from .channel import Channel
from .coroutines import is_coroutine
from .errors import Gone, OneProcess, come_back, described, made
from .handle import ABOUT_FUNCTIONS, DOING, REMOTE, TELLING, Handle, kind_of
from .plain import NAMES_OF_DATA, NONE_KNOWN, NotPlain, pack, unpack
from .returned import RETURNED, is_data

MOST_NESTED = 400
OUR_FRAMES = 12
"""What one call back and forth takes of Python's recursion limit, for which it makes room: the limit is the code's."""
MOST_OBJECTS = 1 << 20
EXITS = (SystemExit, KeyboardInterrupt)
GIVEN_AWAY = frozenset({"__getitem__", "__len__", "iterate", "__next__", "__contains__", "__bool__"})
OF_A_NAME = frozenset({"attribute", "__setattr__", "__delattr__"})


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
        self._kinds: Mapping[str, type[Handle]] = RETURNED if data else REMOTE
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
        self.beside = False
        self.weakened = False
        self.calls = 0

    def expose(self, value: Any) -> int:
        """Give an object a number under which the other end may use it."""
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._objects) >= MOST_OBJECTS:
                raise NotPlain("too many objects handed over")
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return number

    def hello(self) -> dict[str, Any]:
        """What the other end hands over at the start, by name."""
        names = self._receive().get("hello")
        if not isinstance(names, dict) or not all(isinstance(number, int) for number in names.values()):
            raise self._end_of_it(Gone())
        self._entries = frozenset(names.values())
        return {name: self._handle(number, "function") for name, number in names.items()}

    def _handle(self, number: int, kind: str) -> Handle:
        """The same for the same object, so that `is` tells whether it is."""
        if (number, kind) not in self._handles:
            self._handles[number, kind] = self._kinds[kind](self, number)
        return self._handles[number, kind]

    def begin(self) -> None:
        """Nothing was asked yet."""
        self.calls, self._as_data, self._as_objects = 0, "", False

    def claim(self, what: str, number: int, *given: Any) -> Any:
        """Ask the candidate's object for a judgement, where that is allowed."""
        self._rest_on(what)
        return self.ask(what, number, given, {})

    def _rest_on(self, what: str) -> None:
        if not self._weak:
            raise self._end_of_it(OneProcess(f"{what} of an object of the candidate's own class"))
        self.weakened = True

    def look(self, number: int, name: str) -> Any:
        """What the candidate's object holds under a name: the same at every look, until the code is at work again."""
        if (number, name) not in self._looks:
            self._looks[number, name] = self._first_look(number, name)
        value, error = self._looks[number, name]
        if error:
            raise error
        if not is_data(value):
            self._rest_on(f"{name}()")
        return value

    def _first_look(self, number: int, name: str) -> tuple[Any, Exception | None]:
        try:
            return self.ask("attribute", number, (name,), {}), None
        except Exception as error:  # noqa: BLE001 - that there is none is an answer too
            return None, error

    def refuse(self, what: str) -> NoReturn:
        """What nobody but the other end could tell, and not even its word is asked for."""
        if self.guarded:
            raise self._end_of_it(OneProcess(f"{what} of an object of the candidate's own class"))
        raise TypeError(f"{what} of an object of the tests")

    def ask(self, what: str, number: int, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Have the other end do something, and wait for what comes of it. One at a time, whatever the thread."""
        with self._lock:
            self.calls += what == "call"
            if self._kinds is REMOTE:
                self._note(what, number, given, named)
            packed = pack_given(given, self._pack)
            names = {name: self._pack(value) for name, value in named.items()}
            ours = [*containers(given, self._numbers), *containers(named.values(), self._numbers)]
            if self._looks and what != "attribute":
                self._looks = {}
            self._send({"do": what, "to": number, "args": packed, "named": names, "copies": self._copies})
            answer = self._await()
            if self._looks and what != "attribute":  # a function of the tests' was called and looked at something
                self._looks = {}
            if answer.get("changed"):
                self._take_home(answer, ours)
            if "raised" in answer:
                raise self._exception(answer["raised"], what)
            return self._value(answer.get("value"), ours)

    def _note(self, what: str, number: int, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Whether tests of a class use it as one: made of nothing, or asked for what no data has. If not, they may have
        meant a function that gives back data, and an object of the code's in its place would judge itself."""
        if what in OF_A_NAME:
            self._as_objects |= not (given[0] in NAMES_OF_DATA or given[0].startswith("__"))
        elif what == "call":
            self._as_objects |= number in self._entries and not (given or named)
        elif what in TELLING or what == "iterate":
            self._as_data = self._as_data or what

    def _take_home(self, answer: dict[str, Any], ours: list[Any]) -> None:
        """What the other end did to its arguments is done to ours, if it may be."""
        beside = "raised" in answer or answer.get("value") is not None
        if beside and self._copies:
            return
        for number, data in answer["changed"]:
            if not (isinstance(number, int) and 0 <= number < len(ours)):
                raise NotPlain("not an answer")
            refill(ours[number], self._unpack(data, ours))
        self.beside = self.beside or beside

    def _value(self, data: Any, ours: list[Any]) -> Any:
        """What came of it; where copies are wanted, nothing of ours may be in it."""
        self._gave_back = False
        value = self._unpack(data, () if self._copies else ours)
        self.beside = self.beside or self._gave_back
        return value

    def objection(self, ended: BaseException | None) -> BaseException | None:
        """Why the tests ended, told better: they may have caught what they cannot undo, or passed by what is a claim,
        or failed since the code could not get at something of theirs."""
        if self._broken is None and ended is None and self._as_data and not self._as_objects:
            with suppress(OneProcess):
                self._rest_on(self._as_data)
        if self._broken is None and ended is not None and self._denied:
            return OneProcess(str(self._denied))
        return self._broken or ended

    def threw(self, error: BaseException) -> bool:
        """Whether a function of the tests' that the other end called has ended by this."""
        return any(error is thrown for thrown in self._thrown)

    def _end_of_it(self, error: BaseException) -> BaseException:
        self._broken = self._broken or error
        return error

    def _await(self) -> dict[str, Any]:
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
            except Gone:
                return
            self._serve(frame)

    def _serve(self, frame: dict[str, Any]) -> None:
        self._nested += 1
        if self._nested > 1:
            _make_room(OUR_FRAMES)
        try:
            if self._nested > MOST_NESTED:
                raise RecursionError("calls back and forth are nested too deep")
            answer = self._answer(frame)
        except Exception as error:  # noqa: BLE001 - the other end's request fails, not we
            answer = {"raised": self._described(error)}
        finally:
            if self._nested > 1:
                _make_room(-OUR_FRAMES)
            self._nested -= 1
        self._send(answer)

    def _answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        what, number = frame["do"], frame["to"]
        if not (isinstance(number, int) and 0 <= number < len(self._objects)):
            raise NotPlain(f"no object has the number {number}")
        target = self._objects[number]
        given = unpack_given(frame["args"], self._unpack)
        named = {str(name): self._unpack(data) for name, data in frame["named"].items()}
        if self.guarded:
            self._check_given_away(what, target, given)
        arrived = Arrived([*given, *named.values()], self._numbers)
        answer: dict[str, Any] = {}
        try:
            value = DOING[what](target, *given, **named)
            answer["value"] = self._pack(value, NONE_KNOWN if frame.get("copies") else arrived.numbers)
        except Exception as error:  # noqa: BLE001 - what it did before it failed is done
            answer["raised"] = self._described(error)
        except (Gone, OneProcess):
            raise
        except BaseException as error:
            if not (self.guarded or id(error) in self._caught):
                raise  # the code's own end
            answer["raised"] = self._described(error)
        return answer | {"changed": arrived.changed(self._pack)}

    def _check_given_away(self, what: str, target: Any, given: list[Any]) -> None:
        if is_given_away(what, target, given):
            return
        denied = AttributeError(f"{what} of an object of the tests is not given away")
        if type(target).__module__ != "builtins":  # what it would find in a generator is not for it in one process
            self._denied = denied
        raise denied

    def _described(self, error: BaseException) -> list[Any]:
        """An exception for the other end, which may give back the very one that came from there."""
        if id(error) in self._caught:
            return ["back", self._caught[id(error)][1]]
        if self.guarded:
            self._thrown.append(error)
        return described(error, len(self._thrown) - 1)

    def _pack(self, value: Any, known: Mapping[int, int] = NONE_KNOWN) -> Any:
        return pack(value, self._keep, 0, known, self._stays)

    def _keep(self, value: Any) -> Any:
        if issubclass(type(value), Handle):
            return ["back", value._number]
        if is_coroutine(value):
            return ["coming", self.expose(value)]
        return ["handle", [self.expose(value), kind_of(value)]]

    def _unpack(self, data: Any, ours: Sequence[Any] = ()) -> Any:
        return unpack(data, lambda tag, held: self._find(tag, held, ours))

    def _find(self, tag: str, held: Any, ours: Sequence[Any]) -> Any:
        if tag == "handle":
            number, kind = held
            self._entries -= {number}  # it may stand for a method now, such as `copy`, which data has too
            return self._handle(int(number), kind)
        if tag == "yours" and isinstance(held, int) and 0 <= held < len(ours):
            self._gave_back = True
            return ours[held]
        if tag == "coming":
            return self._coming(int(held))
        if tag == "back" and isinstance(held, int) and 0 <= held < len(self._objects):
            return self._objects[held]
        raise NotPlain("not a packed value")

    async def _coming(self, number: int) -> Any:
        """A coroutine of the other end, as one of ours."""
        return self.ask("await", number, (), {})

    def _exception(self, raised: Any, what: str) -> BaseException:
        if raised[0] == "back" and isinstance(raised[1], int) and 0 <= raised[1] < len(self._thrown):
            return come_back(self._thrown[raised[1]], what == "__next__")
        error = made(raised, self._unpack, what == "__next__", () if self.guarded else EXITS)
        if not self.guarded:
            self._caught[id(error)] = error, int(raised[3])
        return error

    def _send(self, frame: dict[str, Any]) -> None:
        try:
            self._channel.send(frame)
        except OSError:
            raise self._end_of_it(Gone()) from None

    def _receive(self) -> dict[str, Any]:
        """The next frame; Gone at the end, or when it is no frame: a large one ends at our own memory's limit."""
        try:
            frame, _ = self._channel.receive()
        except (OSError, EOFError, ValueError, RecursionError, MemoryError):
            raise self._end_of_it(Gone()) from None
        if not isinstance(frame, dict):
            raise self._end_of_it(Gone())
        return frame


def _make_room(frames: int) -> None:
    """For the recursion of the code, which may have set another limit meanwhile."""
    with suppress(OverflowError, ValueError, RecursionError):
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)


def is_given_away(what: str, target: Any, given: list[Any]) -> bool:
    """The tests' own objects: a function may be called and asked for its name, another object read by its items.

    Attributes are shown only of objects of the tests' own classes: a generator's lead to its frame, and so to all.
    """
    plain = callable(target) or isinstance(target, type)
    if (what == "call" and callable(target)) or (what == "await" and is_coroutine(target)):
        return True
    if what in GIVEN_AWAY and not plain:
        return True
    if what != "attribute" or not isinstance(given[0], str):
        return False
    if isinstance(target, FunctionType | BuiltinFunctionType):
        return given[0] in ABOUT_FUNCTIONS
    return not plain and type(target).__module__ == "__main__" and not given[0].startswith("_")
