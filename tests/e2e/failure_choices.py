"""What the failure-injection test does, decided by the seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = [
    "KILLS_A_ROUND",
    "VICTIMS",
    "Cancel",
    "Cell",
    "Kill",
    "Late",
    "Make",
    "Round",
    "Submit",
    "rounds",
]

KILLS_A_ROUND = 18
_CLIENTS = 14
_CELL_EVERY = 3
"""Rounds from one cell to the next: a cell costs as much as twenty scripts."""
_LATE_EVERY = 3
"""Rounds from one launcher that is held up to the next, which takes a second or two."""


@dataclass(frozen=True, slots=True)
class Make:
    """One job: its token is its key and its tag.

    ``kind`` is ``script``, ``resumable``, ``function`` or ``cell``; ``code`` the exit code that it
    has if nobody meddles, negative for a signal. ``after`` counts jobs back from this one.
    """

    token: str
    kind: str
    seconds: float
    code: int
    options: tuple[tuple[str, Any], ...]
    after: tuple[int, ...] = ()
    family: bool = False

    @property
    def restartable(self) -> bool:
        """Whether it may be run more than once."""
        return bool({"restartable", "preemptible"} & dict(self.options).keys())


@dataclass(frozen=True, slots=True)
class Submit:
    """Several jobs, one after the other, by a client of their own; killed on the way or not."""

    delay: float
    jobs: tuple[Make, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job that came ``back`` before the newest is cancelled."""

    delay: float
    back: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A notebook's cell in the background."""

    delay: float
    job: Make


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL for a process of a kind; ``which`` (0 to 1) chooses among those there are."""

    delay: float
    kind: str
    which: float


@dataclass(frozen=True, slots=True)
class Late:
    """Orders that are carried out late: of two runners one must find that it is.

    After ``warm``, with which there is a launcher, it is held up; ``jobs`` are submitted, and when
    it has their orders, the lead is killed. The next one, which ``more`` wake, gives them again.
    The launcher goes on, ``delay`` seconds after they have begun, or ended where ``over``.
    """

    warm: Make
    jobs: tuple[Make, ...]
    more: tuple[Make, ...]
    over: bool
    delay: float


Action = Submit | Cancel | Cell | Kill | Late


@dataclass(frozen=True, slots=True)
class Round:
    """What happens between two times of quiet."""

    number: int
    server: bool
    actions: tuple[Action, ...]


_VICTIMS = {
    "lead": 24, "launcher": 14, "runner": 26, "client": 18, "payload": 10, "spare": 4, "server": 4,
}  # fmt: skip

VICTIMS = frozenset(_VICTIMS)
"""The kinds of processes that are killed."""

_GPUS: tuple[dict[str, Any], ...] = (
    {"preset": "cpu"},
    {"gpus": 1},
    {"gpus": 2},
    {"share": 0.25, "mem": "4G"},
    {"share": 0.5, "mem": "8G"},
)


def _delay(rng: random.Random, most: float = 0.15) -> float:
    """Half of the instants are right behind the last one, where things meet."""
    return rng.uniform(0, 0.012) if rng.random() < 0.5 else rng.uniform(0, most)


def _make(rng: random.Random, number: int) -> Make:
    kind = rng.choices(["script", "resumable", "function"], [80, 13, 7])[0]
    options: dict[str, Any] = {"slots": 1, **rng.choice(_GPUS)}
    seconds = rng.choice([0.0, 0.0, 0.02, 0.1, 0.3, 0.6])
    code = rng.choice([0, 0, 0, 0, 1, 3, 7, -6, -9, -15]) if kind == "script" else 0
    if kind == "function":
        code = rng.choice([0, 0, 0, 1])
        seconds = min(seconds, 0.1)
    if kind == "resumable":
        options["preemptible"] = True
        seconds = rng.choice([0.2, 0.4, 0.8])
    elif rng.random() < 0.2:
        options["restartable"] = True
    if rng.random() < 0.12:
        options["priority"] = rng.choice([1, 5])
    after = tuple(rng.sample(range(1, 6), rng.choice([1, 1, 2]))) if rng.random() < 0.15 else ()
    family = kind == "script" and rng.random() < 0.1
    return Make(f"t{number}", kind, seconds, code, tuple(options.items()), after, family)


def _behind_submits(rng: random.Random, actions: list[Action]) -> None:
    """A client lives some milliseconds: who is to kill one comes right behind it."""
    for action in [a for a in actions if isinstance(a, Kill) and a.kind == "client"]:
        actions.remove(action)
        places = [i for i, other in enumerate(actions) if isinstance(other, Submit)]
        soon = Kill(rng.uniform(0, 0.03), "client", action.which)
        actions.insert(rng.choice(places) + 1, soon)


def _late(rng: random.Random, made: int) -> tuple[Late, int]:
    """One launcher that is held up, and how many jobs have been made with it."""

    def plain(option: tuple[str, Any]) -> Make:
        """One that nothing keeps from starting at once."""
        nonlocal made
        made += 1
        seconds = rng.choice([0.0, 0.1, 0.3])
        return Make(f"t{made}", "script", seconds, rng.choice([0, 3]), (("slots", 1), option))

    warm = plain(("preset", "cpu"))
    jobs = (plain(("preset", "cpu")), plain(("gpus", 1)))
    made += 2
    more = (_make(rng, made - 1), _make(rng, made))
    return Late(warm, jobs, more, rng.random() < 0.7, rng.uniform(0, 0.2)), made


def rounds(seed: int) -> Iterator[Round]:
    """Rounds without end; the same for the same seed, whatever the machine does."""
    rng = random.Random(seed)
    number = made = 0
    kinds = list(_VICTIMS)
    while True:
        actions: list[Action] = []
        for _ in range(_CLIENTS):
            jobs = []
            for _ in range(rng.choice([1, 1, 2, 4])):
                made += 1
                jobs.append(_make(rng, made))
            actions.append(Submit(_delay(rng), tuple(jobs)))
        actions += [Cancel(_delay(rng), rng.randrange(8)) for _ in range(2)]
        for _ in range(KILLS_A_ROUND):
            kind = rng.choices(kinds, list(_VICTIMS.values()))[0]
            actions.append(Kill(_delay(rng, 0.3), kind, rng.random()))
        rng.shuffle(actions)
        if number % _CELL_EVERY == 0:
            made += 1
            cell = Make(f"t{made}", "cell", rng.choice([0.0, 0.3]), 0, (("slots", 1),))
            actions.insert(rng.randrange(len(actions)), Cell(_delay(rng), cell))
        _behind_submits(rng, actions)
        # something must be there to be killed
        first = next(i for i, action in enumerate(actions) if isinstance(action, Submit))
        actions.insert(0, actions.pop(first))
        if number % _LATE_EVERY == 1:
            late, made = _late(rng, made)
            actions.insert(0, late)
        yield Round(number, server=number % 5 == 0, actions=tuple(actions))
        number += 1
