"""Two sandboxes that speak: one runs the tests, the other the candidate. Only plain data and handles cross.

Both ends are the same: a request names an object of the other end and what to do with it, the answer is a value or an
exception. While one end waits for its answer it serves the other's requests, so that a function handed over can be
called. An object is known to the other end by its number, never by itself; the tests' end gives away of its objects
only what the tests handed over: calls of functions, public attributes and items of other objects.

What a function does to its arguments is done to the caller's as well when it returns None: such a function is there to
change them. One that returns a value is asked for that, and what it does on the side stays where it is: otherwise code
could empty a list before the tests look up in it what is right.
"""

import builtins
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .channel import Channel
from .coroutines import awaited, is_coroutine
from .plain import MUTABLE, NotPlain, pack, refill, unpack

MOST_NESTED = 100
MOST_OBJECTS = 1 << 20

DOING: dict[str, Callable[..., Any]] = {
    "call": lambda target, *given, **named: target(*given, **named),
    "attribute": getattr,
    "item": operator.getitem,
    "put": operator.setitem,
    "length": len,
    "iterate": iter,
    "next": next,
    "contains": operator.contains,
    "truth": bool,
    "text": str,
    "shown": repr,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "isinstance": lambda target, value: isinstance(value, target),
    "await": awaited,
}
CLAIMS = frozenset({"==", "!=", "<", "<=", ">", ">=", "isinstance", "contains"})
"""What the candidate's own objects decide: a verdict must not rest on it."""


ENDINGS = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit"})


class Gone(BaseException):
    """The other end is no more: nothing that tests catch."""


class OneProcess(BaseException):
    """The tests ask what only the candidate's own objects could answer."""


class RemoteError(Exception):
    """An exception of the other end that is not one of Python's own."""


class Remote:
    """An object of the other end."""

    def __init__(self, peer: "Peer", number: int, name: str) -> None:
        self.__dict__.update(_peer=peer, _number=number, _name=name)

    def _do(self, what: str, *given: Any) -> Any:
        return self._peer.ask(what, self._number, given, {})

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._peer.ask("call", self._number, given, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._do("attribute", name)

    def __iter__(self) -> Iterator[Any]:
        held = self._do("iterate")
        return iter(held) if not isinstance(held, Remote) else held

    def __hash__(self) -> int:
        return hash(("rollbook", self._number))

    def __instancecheck__(self, value: Any) -> Any:
        return self._peer.claim("isinstance", self._number, value)


def _passed_on(what: str) -> Callable[..., Any]:
    if what in CLAIMS:
        return lambda self, *given: self._peer.claim(what, self._number, *given)
    return lambda self, *given: self._do(what, *given)


_SPECIAL = {"getitem": "item", "setitem": "put", "len": "length", "next": "next", "contains": "contains"}
_SPECIAL |= {"bool": "truth", "str": "text", "repr": "shown"}
_SPECIAL |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
for _name, _what in _SPECIAL.items():
    setattr(Remote, f"__{_name}__", _passed_on(_what))


def weigh(given: tuple[Any, ...], named: dict[str, Any]) -> list[int]:
    """How many hold on to each argument."""
    return [*map(sys.getrefcount, given), *map(sys.getrefcount, named.values())]


class _Scales:
    """A call like those of a handle, with arguments that nobody else has."""

    def __call__(self, *given: Any, **named: Any) -> list[int]:
        return self._weigh(given, named)

    def _weigh(self, given: tuple[Any, ...], named: dict[str, Any]) -> list[int]:
        return weigh(given, named)


NOBODYS = {False: max(_Scales()([])), True: max(_Scales()([], named=[]))}
"""How many hold on to an argument that was written down for the call alone, with and without names."""


class Peer:
    """One end. `guarded`: this is the tests' end; `weak`: it may rest on what the candidate's objects say."""

    def __init__(self, channel: Channel, guarded: bool = False, weak: bool = False) -> None:
        self._channel, self._guarded, self._weak = channel, guarded, weak
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._nested = 0
        self._broken: BaseException | None = None
        self._unseen = False
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

    def hello(self) -> dict[str, Remote]:
        """What the other end hands over at the start, by name."""
        names = self._receive().get("hello")
        if not isinstance(names, dict) or not all(isinstance(number, int) for number in names.values()):
            raise self._end_of_it(Gone())
        return {name: Remote(self, number, name) for name, number in names.items()}

    def claim(self, what: str, number: int, *given: Any) -> Any:
        """Ask the candidate's object for a judgement, where that is allowed."""
        if not self._weak:
            raise self._end_of_it(OneProcess(f"{what} of an object of the candidate's own class"))
        self.weakened = True
        return self.ask(what, number, given, {})

    def ask(self, what: str, number: int, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Have the other end do something, and wait for what comes of it."""
        self.calls += 1
        packed = [self._pack(value) for value in given]
        names = {name: self._pack(value) for name, value in named.items()}
        self._send({"do": what, "to": number, "args": packed, "named": names})
        answer = self._await()
        if "raised" in answer:
            raise self._exception(answer["raised"], what)
        if answer.get("changed"):
            self._take_home(answer, given, named)
        return self._unpack(answer.get("value"))

    def _take_home(self, answer: dict[str, Any], given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """What the other end did to its arguments is done to ours, if it may be."""
        beside = self._guarded and answer.get("value") is not None
        if beside and not self._weak:
            self._unseen = self._unseen or self._somebody_could_look(given, named)
            return
        arguments = [*given, *named.values()]
        for place, data in answer["changed"]:
            if not (isinstance(place, int) and 0 <= place < len(arguments) and isinstance(arguments[place], MUTABLE)):
                raise NotPlain("not an answer")
            refill(arguments[place], self._unpack(data))
            self.weakened = self.weakened or beside

    def _somebody_could_look(self, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether the tests hold on to an argument: what they wrote down only for the call, they never see again."""
        return max(weigh(given, named)) > NOBODYS[bool(named)]

    def objection(self, ended: BaseException | None) -> BaseException | None:
        """Why the tests ended, told better: they may have caught what they cannot undo, or not seen what was done."""
        if self._broken:
            return self._broken
        if ended and self._unseen and not isinstance(ended, Gone | OneProcess):
            return OneProcess("the code returns a value and changes its arguments too, which the tests do not see")
        return ended

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
        try:
            if self._nested > MOST_NESTED:
                raise RecursionError("calls back and forth are nested too deep")
            answer = self._answer(frame)
        except Exception as error:  # noqa: BLE001 - the other end's request fails, not we
            answer = {"raised": _described(error)}
        finally:
            self._nested -= 1
        self._send(answer)

    def _answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        what, number = frame["do"], frame["to"]
        if not (isinstance(number, int) and 0 <= number < len(self._objects)):
            raise NotPlain(f"no object has the number {number}")
        target = self._objects[number]
        given = [self._unpack(data) for data in frame["args"]]
        named = {str(name): self._unpack(data) for name, data in frame["named"].items()}
        if self._guarded:
            _check_given_away(what, target, given)
        value = DOING[what](target, *given, **named)
        before = [*frame["args"], *frame["named"].values()]
        return {"value": self._pack(value), "changed": [*self._changed([*given, *named.values()], before)]}

    def _changed(self, given: list[Any], before: list[Any]) -> Iterator[tuple[int, Any]]:
        for place, value in enumerate(given):
            if type(value) in MUTABLE:
                now = self._pack(value)
                if now != before[place]:
                    yield place, now

    def _pack(self, value: Any) -> Any:
        return pack(value, self._keep)

    def _keep(self, value: Any) -> Any:
        if type(value) is Remote:
            return ["back", value._number]
        if is_coroutine(value):
            return ["coming", self.expose(value)]
        return ["handle", [self.expose(value), type(value).__name__]]

    def _unpack(self, data: Any) -> Any:
        return unpack(data, self._find)

    def _find(self, tag: str, held: Any) -> Any:
        if tag == "handle":
            number, name = held
            return Remote(self, int(number), str(name))
        if tag == "coming":
            return self._coming(int(held))
        if tag == "back" and isinstance(held, int) and 0 <= held < len(self._objects):
            return self._objects[held]
        raise NotPlain("not a packed value")

    async def _coming(self, number: int) -> Any:
        """A coroutine of the other end, as one of ours."""
        return self.ask("await", number, (), {})

    def _exception(self, raised: Any, what: str) -> BaseException:
        name, given = str(raised[0]), [self._unpack(data) for data in raised[1]]
        known = getattr(builtins, name, None)
        if name in ENDINGS and what != "next":  # out of a call, it would end a loop of the tests as if all were well
            return RemoteError(name, *given)
        if isinstance(known, type) and issubclass(known, Exception):
            try:
                return known(*given)
            except Exception:  # noqa: BLE001 - some want other arguments than they show
                return RemoteError(name, *given)
        return RemoteError(name, *given)

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


def _check_given_away(what: str, target: Any, given: list[Any]) -> None:
    """The tests' own objects: a function may be called, another object read by its items.

    Attributes are shown only of objects of the tests' own classes: a generator's lead to its frame, and so to all.
    """
    plain = callable(target) or isinstance(target, type)
    if (what == "call" and callable(target)) or (what == "await" and is_coroutine(target)):
        return
    if what in ("item", "length", "iterate", "next", "contains", "truth") and not plain:
        return
    own = not plain and type(target).__module__ == "__main__"
    if what == "attribute" and own and isinstance(given[0], str) and not given[0].startswith("_"):
        return
    raise AttributeError(f"{what} of an object of the tests is not given away")


def _described(error: Exception) -> list[Any]:
    plain = [arg for arg in error.args if isinstance(arg, str | int | float | bool | None)]
    return [type(error).__name__, [arg if not isinstance(arg, str) else arg[:2000] for arg in plain]]
