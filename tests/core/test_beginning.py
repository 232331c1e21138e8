"""Beginnings of numbers that are not finite: their sentences, the frontier of gradients and the search over values."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from probe.core.checks.beginning import Beginning, UsedParameter, common_owner, frontier
from probe.core.checks.value_graph import CERTAIN, Operation, State, StepValue, beginning


class Graph(NamedTuple):
    """Chain or tree of operations whose states are known in advance."""

    operations: list[Operation]
    values: list[StepValue]
    states: list[State]
    doubts: dict[int, int]
    confined: frozenset[tuple[int, str]] = frozenset()
    late: bool = False

    @property
    def cut(self) -> bool:
        return self.late

    def state(self, value: int) -> State:
        return self.states[value]

    def doubt(self, operation: int, spoilt: State) -> int:
        return self.doubts.get(operation, 0)

    def confines(self, operation: int, spoilt: State) -> bool:
        return (operation, spoilt) in self.confined

    def expired(self) -> bool:
        return self.late


def chain(
    *states: State, doubts: dict[int, int], confined: tuple[tuple[int, str], ...] = (), late: bool = False
) -> Graph:
    """Operations ``a``, ``b``, ... one behind the other, each with a parameter; ``states`` of the input and what each
    makes. Values come first, then parameters."""
    names = "abcdefgh"[: len(states) - 1]
    count = len(states)
    operations = [Operation(f"op {name}", 10 * i, (i, count + i), (f"{name}.weight",)) for i, name in enumerate(names)]
    values = [StepValue(None, ""), *(StepValue(i, "") for i in range(count - 1))]
    values += [StepValue(None, f"{name}.weight") for name in names]
    known: list[State] = list(states)
    known += ["finite" for _ in names]
    return Graph(operations, values, known, doubts, frozenset(confined), late)


def begin(graph: Graph) -> Beginning:
    root = len(graph.operations)
    found = beginning(graph, root)
    assert found is not None
    return found


def test_a_finite_root_has_no_beginning() -> None:
    """Nothing is looked for behind a finite value."""
    assert beginning(chain("finite", "nan", "finite", doubts={}), 2) is None


def test_the_first_value_that_is_not_finite_is_its_operation() -> None:
    """The maker of a value whose inputs are finite is named, with the number of operations."""
    found = begin(chain("finite", "finite", "nan", "nan", "nan", doubts={1: 3}))
    assert (found.operation, found.after, found.before, found.nodes, found.cut) == ("op b", "b", "b", 4, False)


def test_a_certain_operation_is_named_among_several_modules() -> None:
    """Where no number is known between modules, an operation is named only if it is certain."""
    unknown = chain("finite", "unknown", "unknown", "nan", "nan", doubts={0: 3, 1: 3, 2: 3})
    assert begin(unknown)[:4] == ("unknown", "", "", "c")
    assert begin(unknown._replace(doubts={1: CERTAIN})).operation == "op b"


def test_a_finite_value_hides_what_lies_behind_it() -> None:
    """A number that is not finite is no evidence if a finite value lies between it and the root."""
    found = begin(chain("finite", "-inf", "finite", "nan", doubts={}))
    assert found.operation == "op c"


def test_meant_infinities_do_not_explain_nan() -> None:
    """An operation that may read ``-inf`` makes NaN itself; one that may not is led to it."""
    graph = chain("finite", "-inf", "nan", doubts={1: 3, 0: 3})
    assert (begin(graph).operation, begin(graph).value) == ("op a", "inf")
    confined = graph._replace(confined=frozenset({(1, "-inf")}))
    assert (begin(confined).operation, begin(confined).value) == ("op b", "nan")


def test_a_spoilt_parameter_is_named_itself() -> None:
    """A parameter that is not finite is the beginning, unless what its operation reads is not finite either."""
    graph = chain("finite", "finite", "nan", doubts={})
    graph.states[4] = "nan"
    assert begin(graph).text() == "NaN is in `b.weight` itself, from before this step."
    graph.states[1] = "nan"
    assert begin(graph).operation == "op a"


def test_a_spoilt_input_is_named_by_its_reader() -> None:
    """An input that is not finite is named by the module that reads it."""
    assert begin(chain("nan", "nan", "nan", doubts={})).text() == "NaN is in the input of `a`."


def test_a_search_without_time_is_cut_off() -> None:
    """A search that has no time names the root's operation, and that it may have begun earlier."""
    found = begin(chain("nan", "nan", "nan", doubts={}, late=True))
    assert found.cut
    assert "may have begun earlier" in found.text()


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            Beginning("operation", "division (div)", "a", "b", "nan"),
            "NaN first appears between `a` and `b`, in: division (div).",
        ),
        (Beginning("operation", "exp", "a", "a", "inf"), "Inf first appears in `a`, in: exp."),
        (Beginning("operation", "exp", "a", "b", "inf", module="a.act"), "Inf first appears in `a.act`, in: exp."),
        (Beginning("operation", "exp", "", "", "inf"), "Inf first appears in the model, in: exp."),
        (Beginning("unknown", "", "a", "", "nan"), "NaN first appears between `a` and the loss."),
        (
            Beginning("unknown", "", "", "b", "nan", unread=3),
            "NaN first appears between the input and `b`; values between them could not be read.",
        ),
        (Beginning("input", "", "", "", "nan"), "NaN is in an input of the model."),
    ],
)
def test_a_beginning_is_one_sentence(found: Beginning, text: str) -> None:
    """Each kind of beginning has a sentence of its own."""
    assert found.text() == text


def parameters(**states: bool) -> list[UsedParameter]:
    """Parameters in the order of the forward, one operation each."""
    return [UsedParameter(f"{name}.weight", order, finite) for order, (name, finite) in enumerate(states.items())]


def test_the_frontier_is_where_the_backward_stops_being_finite() -> None:
    """Of modules used one after another, the latest with a bad gradient is named, and the next behind it."""
    found = frontier(parameters(a=False, b=False, c=True, d=True))
    assert found is not None
    assert (found.parameter, found.after, found.before) == ("b.weight", "b", "c")
    assert found.text() == (
        "NaN or Inf first appears in the gradients of `b`: in its backward, or in what lies between it and `c`."
    )


def test_finite_gradients_have_no_frontier() -> None:
    """Finite gradients, or none, are no finding."""
    assert frontier(parameters(a=True)) is None
    assert frontier([]) is None


def test_a_frontier_at_the_loss() -> None:
    """If no gradient is finite, what lies between the last module and the loss may have done it."""
    found = frontier(reversed(parameters(a=False, b=False)))
    assert found is not None
    assert found.text().endswith("of `b`: in its backward, or in what lies between it and the loss.")


def test_one_finite_gradient_of_an_operation_places_the_other() -> None:
    """A weight whose bias has a finite gradient got NaN in the module's own backward."""
    found = frontier(
        [UsedParameter("a.weight", 5, False), UsedParameter("a.bias", 5, True), UsedParameter("z", 9, True)]
    )
    assert found is not None
    assert found.text() == "NaN or Inf first appears in the gradients of `a`, in its backward."


def test_parameters_of_one_operation_have_the_module_around_them() -> None:
    """The owner of several parameters is the innermost module that holds them all."""
    assert common_owner(["a.b.weight", "a.b.bias"]) == "a.b"
    assert common_owner(["a.b.weight", "a.c.weight"]) == "a"
    assert common_owner(["a.weight", "b.weight"]) == ""
    assert common_owner(["weight"]) == "weight"
