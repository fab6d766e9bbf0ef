"""The fault state, rule by rule, and under every interleaving of faults, deaths and arrivals."""

import json
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given, settings, strategies as st

from fractune_workers.faults.fault_state import REMEMBERED, ArtifactFailure, Ending, FaultState, Step

CRASH = ArtifactFailure("crashed", "it crashed")


def flying(state: FaultState, member: str, *artifacts: str, alone: bool = False) -> FaultState:
    state, step = state.begin(member, artifacts, alone=alone)
    assert step in {Step.GO, Step.GO_ALONE}
    return state


def asked(state: FaultState, member: str, *artifacts: str) -> Step:
    return state.begin(member, artifacts)[1]


def test_attempts_side_by_side_do_not_disturb_each_other() -> None:
    state = flying(flying(FaultState(), "a", "x"), "b", "y")
    state, ending = state.finish("a")
    assert ending is Ending.VALID
    assert state.clients == {"a", "b"}
    assert state.finish("b")[1] is Ending.VALID


def test_a_fault_voids_every_attempt_and_none_begins_until_all_have_left() -> None:
    state = flying(flying(FaultState(), "a", "x"), "b", "y")
    state, ending = state.fail("a", CRASH, spreads=True)
    assert ending is Ending.BESIDE_OTHERS
    assert (state.failure, set(state.suspects)) == ("it crashed", {"x", "y"})
    assert asked(state, "a", "x") is Step.LEAVE
    state = state.leave("a")
    assert asked(state, "a", "x") is Step.AWAY
    assert state.reopen(0) == state
    state, ending = state.finish("b")
    assert ending is Ending.VOID
    state = state.leave("b")
    assert asked(state, "b", "y") is Step.REOPEN
    state = state.reopen(0)
    assert (state.number, state.failure) == (1, "")
    assert state.reopen(0) == state


def test_a_fault_that_is_told_twice_is_one() -> None:
    state = flying(flying(FaultState(), "a", "x"), "b", "y")
    state, _ = state.fail("a", CRASH, spreads=True)
    told_again, ending = state.fail("b", ArtifactFailure("crashed", "another"), spreads=True)
    assert ending is Ending.VOID
    assert told_again.failure == "it crashed"


def suspect(*artifacts: str) -> FaultState:
    return FaultState(suspects=artifacts)


def test_a_suspect_flies_alone_and_the_one_that_waits_for_it_goes_first() -> None:
    state = flying(suspect("x"), "b", "y")
    state, step = state.begin("a", ("x",))
    assert step is Step.WAIT
    assert asked(state, "c", "z") is Step.WAIT
    state, _ = state.finish("b")
    state, step = state.begin("a", ("x",))
    assert step is Step.GO_ALONE
    assert asked(state, "b", "z") is Step.WAIT
    state, ending = state.finish("a")
    assert (ending, state.suspects) == (Ending.VALID, ())
    assert asked(state, "b", "x") is Step.GO


def test_what_takes_the_device_down_alone_is_guilty_and_never_flies_again() -> None:
    state = flying(flying(suspect("x"), "idle", "y").finish("idle")[0], "a", "x")
    state, ending = state.fail("a", CRASH, spreads=True)
    assert (ending, state.suspects) == (Ending.OWN_FAULT, ())
    assert state.must_leave("idle")
    assert asked(state, "b", "y", "x") is Step.REFUSED
    assert state.verdict_of(["y", "x"]) == CRASH


def test_a_failure_that_does_not_spread_leaves_the_state_open() -> None:
    state = flying(flying(FaultState(), "a", "x"), "b", "y")
    state, ending = state.fail("a", CRASH, spreads=False)
    assert (ending, state.suspects, state.failure) == (Ending.BESIDE_OTHERS, ("x",), "")
    state, _ = state.finish("b")
    state, ending = flying(state, "a", "x").fail("a", CRASH, spreads=False)
    assert ending is Ending.OWN_FAULT
    assert (state.suspects, state.verdicts) == ((), {})


def test_of_several_that_fail_together_none_is_named() -> None:
    state, ending = flying(FaultState(), "a", "x", "y", alone=True).fail("a", CRASH, spreads=True)
    assert ending is Ending.OWN_FAULT
    assert (set(state.suspects), state.verdicts) == ({"x", "y"}, {})


def test_a_process_that_only_gets_ready_blames_no_artifact() -> None:
    state, ending = flying(FaultState(), "a", alone=True).fail("a", CRASH, spreads=True)
    assert (ending, state.suspects, state.verdicts) == (Ending.OWN_FAULT, (), {})


def test_a_death_during_an_attempt_fails_the_state_and_an_idle_death_does_not() -> None:
    state = flying(flying(FaultState(), "a", "x"), "b", "y")
    down = state.remove_dead(["a"])
    assert (set(down.suspects), set(down.clients)) == ({"x", "y"}, {"b"})
    assert down.failure
    idle = state.finish("a")[0].remove_dead(["a"])
    assert (idle.failure, set(idle.clients), set(idle.attempts)) == ("", {"b"}, {"b"})


def test_a_dead_member_that_waited_to_run_alone_holds_no_other_up() -> None:
    state = flying(suspect("x"), "b", "y").begin("a", ("x",))[0]
    assert "a" in state.members
    assert asked(state, "c", "z") is Step.WAIT
    assert asked(state.remove_dead(["a"]), "c", "z") is Step.GO


def test_turning_back_clears_no_suspect() -> None:
    state = flying(suspect("x"), "a", "x").withdraw("a")
    assert (state.suspects, state.attempts) == (("x",), {})


def test_the_memory_is_bounded() -> None:
    state = FaultState()
    for number in range(REMEMBERED + 5):
        state = flying(state, "a", f"x{number}", alone=True).fail("a", CRASH, spreads=True)[0].leave("a")
        state = state.reopen(state.number)
    assert len(state.verdicts) == REMEMBERED
    assert asked(state, "a", f"x{REMEMBERED + 4}") is Step.REFUSED


# ---- any interleaving --------------------------------------------------------------------------------------------


class Nature(Enum):
    """What a candidate does when it runs."""

    GOOD = "good"
    POISON = "poison"
    """takes the device down, and fails"""
    SNEAK = "sneak"
    """takes the device down, and ends as if nothing were"""
    FAILING = "failing"
    """fails, and harms no other"""
    MOODY = "moody"
    """fails beside others only, and harms no other"""


@dataclass
class Worker:
    """A measurer as `fractune_workers.faults.guard` makes it: it tries one candidate until there is a verdict."""

    name: str
    candidate: str = ""
    alone: bool = False
    is_running: bool = False
    ran: bool = False


@dataclass
class World:
    """A device, its measurers, and the queue of what is to be measured."""

    natures: dict[str, Nature]
    queue: deque[str]
    state: FaultState = field(default_factory=FaultState)
    workers: list[Worker] = field(default_factory=list)
    down: bool = False
    """the truth about the device; it is active again when every client has left"""
    born: int = 0
    measured: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)

    def arrive(self) -> None:
        self.born += 1
        self.workers.append(Worker(f"w{self.born}"))

    def die(self, worker: Worker, *, harmful: bool) -> None:
        """Killed, at any instant: what it had in hand is given again, and the next to come buries it."""
        self.workers.remove(worker)
        if worker.candidate:
            self.queue.append(worker.candidate)
        self.down = self.down or (worker.is_running and harmful)
        self.change(self.state.remove_dead([worker.name]))

    def step(self, worker: Worker) -> None:
        if worker.is_running:
            self.fly_on(worker)
        elif worker.candidate or self.queue:
            worker.candidate = worker.candidate or self.queue.popleft()
            self.ask(worker)
        elif self.state.must_leave(worker.name):
            self.change(self.state.leave(worker.name))

    def ask(self, worker: Worker) -> None:
        state, step = self.state.begin(worker.name, (worker.candidate,), alone=worker.alone)
        assert step is not Step.GO or worker.candidate not in self.state.suspects
        self.change(state)
        if step is Step.REFUSED:
            self.settle(worker, self.quarantined)
        elif step is Step.LEAVE:
            self.change(self.state.leave(worker.name))
        elif step is Step.REOPEN:
            self.reopen()
        elif step in {Step.GO, Step.GO_ALONE}:
            worker.is_running, worker.ran = True, False
            if step is Step.GO_ALONE and self.down:  # it looks before it starts
                worker.is_running = False
                self.change(self.state.abandon(worker.name, "not active").leave(worker.name))

    def fly_on(self, worker: Worker) -> None:
        """First it runs, then it notices how that went: a neighbour may notice before."""
        nature = self.natures[worker.candidate]
        if not worker.ran:
            worker.ran = True
            self.down = self.down or nature in {Nature.POISON, Nature.SNEAK}
            return
        alone = self.state.attempts[worker.name].alone
        fails = nature in {Nature.POISON, Nature.FAILING} or (nature is Nature.MOODY and not alone)
        fails = fails or (
            self.down and (nature is not Nature.SNEAK or alone)
        )  # alone, the device is looked at afterwards
        worker.is_running = False
        if fails:
            state, ending = self.state.fail(worker.name, CRASH, spreads=self.down)
            state = state.leave(worker.name)
            worker.alone = worker.alone or ending is Ending.BESIDE_OTHERS
        else:
            state, ending = self.state.finish(worker.name)
        self.change(state)
        if ending is Ending.VALID:
            self.settle(worker, self.measured)
        elif ending is Ending.OWN_FAULT:
            assert alone
            self.settle(worker, self.quarantined)

    def settle(self, worker: Worker, verdict: list[str]) -> None:
        verdict.append(worker.candidate)
        worker.candidate, worker.alone = "", False

    def reopen(self) -> None:
        """By a member that looked at the device a while ago."""
        self.down = self.down and not self.state.is_deserted
        self.change(self.state.reopen(self.state.number))

    def change(self, state: FaultState) -> None:
        """As it goes through the file; and what must hold of every state."""
        assert FaultState.from_json(json.loads(json.dumps(state.to_json()))) == state
        assert set(state.attempts) <= state.clients
        assert not any(attempt.alone for attempt in state.attempts.values()) or len(state.attempts) == 1
        assert not set(state.verdicts) & set(state.suspects)
        if self.state.failure and state.failure:
            assert set(state.attempts) <= set(self.state.attempts), "no attempt begins in a failed state"
        if state.number > self.state.number:
            assert self.state.is_deserted
        self.state = state

    @property
    def is_settled(self) -> bool:
        return not self.queue and not any(worker.candidate for worker in self.workers)


EVENTS = st.sampled_from(["step"] * 12 + ["arrive", "die", "die_harmfully", "reopen"])
NATURES = st.lists(st.sampled_from([*Nature, Nature.GOOD, Nature.GOOD]), min_size=1, max_size=10)


@settings(max_examples=200)
@given(NATURES, st.integers(1, 4), st.lists(st.tuples(EVENTS, st.integers(0, 7)), max_size=120))
def test_every_candidate_ends_measured_or_quarantined_once_and_no_artifact_is_blamed_for_another(
    natures: list[Nature], workers: int, schedule: list[tuple[str, int]]
) -> None:
    named = {f"c{number}": nature for number, nature in enumerate(natures)}
    world = World(named, deque(named))
    for _ in range(workers):
        world.arrive()
    for event, number in schedule:
        if event == "arrive" or not world.workers:
            world.arrive()
        elif event == "reopen":
            world.reopen()
        elif event == "step":
            world.step(world.workers[number % len(world.workers)])
        else:
            world.die(world.workers[number % len(world.workers)], harmful=event == "die_harmfully")
    if not world.workers:
        world.arrive()
    # From here on no measurer dies. Then it ends: each candidate costs at most an attempt beside others and one alone,
    # each of which may fail a state, which every client has to leave.
    turns = 40 * (len(named) + 2) * (len(world.workers) + 1)
    while not world.is_settled and turns:
        turns -= 1
        for worker in list(world.workers):
            world.step(worker)
    assert world.is_settled
    assert sorted([*world.measured, *world.quarantined]) == sorted(named)
    assert {named[each] for each in world.quarantined} <= {Nature.POISON, Nature.SNEAK, Nature.FAILING}
    assert not {named[each] for each in world.measured} & {Nature.POISON, Nature.FAILING}


@pytest.mark.parametrize("nature", list(Nature))
def test_a_single_measurer_needs_two_attempts_for_a_verdict_at_most(nature: Nature) -> None:
    world = World({"c": nature}, deque(["c"]))
    world.arrive()
    for _ in range(12):
        world.step(world.workers[0])
    guilty = nature in {Nature.POISON, Nature.FAILING}
    assert (world.quarantined, world.measured) == ((["c"], []) if guilty else ([], ["c"]))
