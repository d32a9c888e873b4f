"""`tasks[]` of the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, Strict, TypeAdapter

from coeval.config.models import name_of
from coeval.config.reading import (
    AboveZero,
    Bool,
    Count,
    Entry,
    Positive,
    Problems,
    Text,
    hint,
    read,
    shown,
)
from coeval.judging.grading import clashing
from coeval.judging.metrics import METRICS, wrong_definition
from coeval.judging.prompts import PROMPTS, VARIABLES, unknown_variables
from coeval.schema import DEFAULT, SCALE_FORMS, Attributes, Pairwise, Sampling, Scale, Task, scale_of
from p2l.common.config import Where, kind_of


def _values(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ValueError(f"must be a list of values, and is {kind_of(values)}")
    if not values:
        raise ValueError("has no values; add some, or remove it")
    if any(value is None or isinstance(value, list | Mapping) for value in values):
        raise ValueError("each value must be text, a number, true or false")
    return [value if isinstance(value, str | bool | int | float) else str(value) for value in values]


def _word_or(adapter: TypeAdapter[Any], what: str, *words: str) -> PlainValidator:
    """Accept one of two words, or a mapping as the adapter has it."""

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            return adapter.validate_python(value)
        if value not in words:
            choice = f"must be a map of {what}, `{words[0]}` or `{words[1]}`"
            raise ValueError(f"{choice}, and is {shown(value)}{hint(value, words)}")
        return value

    return PlainValidator(check)


_AttributeMap = dict[Annotated[str, Strict()], Annotated[list[Any], PlainValidator(_values)]]
_AttributesOrWord = Annotated[
    Attributes | Literal["auto", "complete"],
    _word_or(TypeAdapter(_AttributeMap), "attributes to values", "auto", "complete"),
]


class _Weight(Entry):
    weight: AboveZero = 1.0


class _Weighted(_Weight):
    description: Text = Field(description="what tells a good answer from a bad one")


def _factor(definition: Any) -> Any:
    """Return a description, a description with its weight, or a metric, as it is written."""
    if definition is None:
        raise ValueError("is missing; add what tells a good answer from a bad one")
    if not isinstance(definition, Mapping):
        return _TEXT.validate_python(definition)
    metric, description = definition.get("metric"), definition.get("description")
    if "metric" not in definition and ("weight" in definition or "description" in definition):
        _Weighted.model_validate(definition)
        return definition
    if metric not in METRICS:
        choice = f"needs a description, or `metric:` one of {', '.join(METRICS)}"
        raise ValueError(f"{choice}; it is {shown(metric)}{hint(metric, METRICS)} (V-18)")
    if reason := wrong_definition(definition):
        raise ValueError(f"{reason} (V-18)")
    if description is not None and not isinstance(description, str):
        raise ValueError("its description must be text")
    _Weight.model_validate({"weight": definition.get("weight")})
    return definition


_TEXT = TypeAdapter(Text)
_RubricMap = dict[Annotated[str, Strict()], Annotated[str | _Weighted, PlainValidator(_factor)]]


def _not_empty(rubric: Any) -> Any:
    if not rubric:
        raise ValueError("has no factors; add some, or write `auto`")
    return rubric


def _range(value: Any, other: str = "") -> tuple[int, int]:
    """Return `[min, max]`, `[n]` or `n` as two ends."""
    ends = value if isinstance(value, list) else [value]
    if not 1 <= len(ends) <= 2 or any(isinstance(end, bool) or not isinstance(end, int) or end < 0 for end in ends):
        written = str(value)[:40] if isinstance(value, list) else shown(value)
        raise ValueError(f"must be `[min, max]`, `[n]`, `n`{other} with whole numbers, and is {written}")
    if ends[0] > ends[-1]:
        raise ValueError(f"the least, {ends[0]}, is above the most, {ends[-1]}; turn them round")
    return ends[0], ends[-1]


def _range_or_all(value: Any) -> Any:
    return value if value == "all" else _range(value, " or `all`")


class _Sampling(Entry):
    target: Annotated[
        tuple[int, int] | Literal["all"],
        PlainValidator(_range_or_all),
    ] = Field(description="`target: [min, max]`, or `all`")
    nuance: Annotated[tuple[int, int] | None, PlainValidator(lambda value: _range(value))] = None
    total: Count = Field(description="`total: N`, items for each teacher")


class _Pairwise(Entry):
    schedule: Literal["all", "active"] = "all"
    pairs: Positive | None = None
    both_orders: Bool = True
    reference: Bool = True


def _scale(value: Any) -> Scale:
    try:
        return scale_of(value)
    except (ValueError, TypeError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"must be {SCALE_FORMS}"
        if reason.startswith("must be"):
            reason += f", and is {shown(value)}{hint(value, ('levels',))}"
        raise ValueError(reason) from None


def _label(label: Any) -> str:
    if not isinstance(label, str):
        raise ValueError(f"must be the name of a target attribute, and is {kind_of(label)} (V-17)")
    return label


class TaskEntry(Entry):
    """One of `tasks`."""

    name: Annotated[Text, name_of("letters (a-z, A-Z), digits, '_' and '-'", "[A-Za-z0-9_-]+")] = Field(
        default="", description="a name that is its own"
    )
    description: Text = Field(default="", description="a sentence that says what the task is")
    output_description: Text = Field(default="", description="a sentence that says what an answer looks like")
    target_attributes: _AttributesOrWord = Field(
        default_factory=dict, description="a map of attributes to values, `auto` or `complete`"
    )
    nuanced_attributes: _AttributesOrWord = Field(default_factory=dict)
    target_attributes_seed: _AttributeMap = Field(default_factory=dict)
    nuanced_attributes_seed: _AttributeMap = Field(default_factory=dict)
    sampling: _Sampling | None = Field(
        default=None, description="`target: [min, max]`, `nuance: [min, max]` and `total: N`"
    )
    rubric: Annotated[
        _RubricMap | Literal["auto", "extend"],
        _word_or(TypeAdapter(_RubricMap), "factors to descriptions", "auto", "extend"),
        AfterValidator(_not_empty),
    ] = Field(default_factory=dict, description="a map of factors to descriptions, `auto` or `extend`")
    evaluation_mode: Literal["single", "per_factor", "pairwise"] = "single"
    pairwise: _Pairwise = Field(default_factory=_Pairwise)
    store_nuanced: Bool = False
    prompt_library: dict[Annotated[str, Strict()], Text] = Field(default_factory=dict)
    label_attributes: list[Annotated[str, PlainValidator(_label)]] = Field(default_factory=list)
    category: Text | None = None
    scale: Annotated[Scale, PlainValidator(_scale)] = DEFAULT
    rationale: Bool = False
    expected_scores: Bool = False
    documents: list[Text] = Field(default_factory=list)


def read_tasks(entries: list[Any], problems: Problems, models: Collection[str] | None) -> tuple[Task, ...]:
    """Return every task, with prompts for these models at most; None: they are not known (tasks of an earlier run)."""
    tasks: list[Task] = []
    for number, raw in enumerate(entries):
        where = ("tasks", number)
        problems.name(where, raw)
        entry = read(TaskEntry, raw, where, problems)
        _check_attributes(entry, where, problems)
        _check_judging(entry, where, problems)
        _check_prompts(entry.prompt_library, (*where, "prompt_library"), problems, models)
        if entry.name and any(entry.name == other.name for other in tasks):
            problems.add((*where, "name"), f"{entry.name!r} is the name of two tasks; rename one", "V-03")
        sampling = Sampling((0, 0), (0, 0), 0)  # where it is missing, which is reported
        if entry.sampling is not None:
            sampling = Sampling(entry.sampling.target, entry.sampling.nuance or (0, 0), entry.sampling.total)
        fields = dict(entry) | {
            "sampling": sampling,
            "pairwise": Pairwise(**dict(entry.pairwise)),
            "label_attributes": tuple(dict.fromkeys(entry.label_attributes)),
            "documents": tuple(entry.documents),
        }
        tasks.append(Task(**fields))
    return tuple(tasks)


def _check_attributes(entry: TaskEntry, where: Where, problems: Problems) -> None:
    """Check attributes, their seeds, the numbers that are drawn of them, and the labels among them."""
    names = {}
    for kind, key in (("target", "target_attributes"), ("nuance", "nuanced_attributes")):
        attributes: Any = getattr(entry, key)
        seed: Mapping[str, Any] = getattr(entry, f"{key}_seed")
        has_seed = f"{key}_seed" in entry.model_fields_set or problems.within(*where, f"{key}_seed")
        if attributes == "complete" and not has_seed:
            message = f"`complete` needs {key}_seed to start from; add it, or write `auto`"
            problems.add((*where, key), message)
        if has_seed and not isinstance(attributes, str) and not problems.within(*where, key):
            problems.add((*where, f"{key}_seed"), f"goes with `{key}: auto` or `complete`; remove one of the two")
        names[kind] = set(seed) if isinstance(attributes, str) else {*attributes, *seed}
        _check_number(entry.sampling, kind, attributes, (*where, "sampling", kind), problems)
    targets = {name.strip().casefold() for name in names["target"]}
    for name in names["nuance"]:
        if name.strip().casefold() in targets:
            # In an item one value would stand for both.
            problems.add(
                (*where, "nuanced_attributes", name), "is a target attribute too; remove or rename one of the two"
            )
    if any(problems.within(*where, key) for key in ("target_attributes", "target_attributes_seed")):
        return
    for number, label in enumerate(entry.label_attributes):
        if label not in names["target"]:
            near = hint(label, names["target"], "; it has to be given as a map, since labels are what is known")
            message = f"{label[:60]!r} is not a target attribute written here{near}"
            problems.add((*where, "label_attributes", number), message, "V-17")


def _check_number(sampling: _Sampling | None, kind: str, attributes: Any, where: Where, problems: Problems) -> None:
    if sampling is None:
        return
    ends = sampling.target if kind == "target" else sampling.nuance
    if ends is None and attributes:
        problems.add(where, "is missing; add `nuance: [min, max]`")
    if isinstance(ends, tuple) and isinstance(attributes, Mapping) and attributes and ends[0] > len(attributes):
        message = f"asks for at least {ends[0]} attributes of {len(attributes)}; lower it, or add attributes"
        problems.add(where, message)


def _check_judging(entry: TaskEntry, where: Where, problems: Problems) -> None:
    """Check what goes with some modes of evaluation alone."""
    mode, pairwise = entry.evaluation_mode, entry.pairwise
    if pairwise.schedule == "active" and pairwise.pairs is None:
        message = "is missing; `schedule: active` needs the number of pairs that a judge may see"
        problems.add((*where, "pairwise", "pairs"), message)
    if problems.within(*where, "evaluation_mode"):
        return
    if "pairwise" in entry.model_fields_set and mode != "pairwise":
        problems.add((*where, "pairwise"), "goes with `evaluation_mode: pairwise` alone; write that, or remove it")
    if "scale" in entry.model_fields_set and mode == "pairwise":
        message = "has no use where answers are compared in pairs; remove it, or write another mode"
        problems.add((*where, "scale"), message)
    if not entry.expected_scores:
        return
    # The first token of an answer has to be the grade of one factor, and to tell it from all other grades.
    at = (*where, "expected_scores")
    if mode != "per_factor":
        problems.add(at, "looks at the first token of an answer; write `evaluation_mode: per_factor`, or remove it")
    if entry.rationale:
        problems.add(at, "looks at the first token of an answer, which `rationale` makes another; remove one of them")
    clash = clashing(entry.scale)
    if clash is not None:
        message = f"needs grades of which each begins with another token, not {clash[0]!r} and {clash[1]!r}; use `0-9`"
        problems.add(at, message)


def _check_prompts(
    prompts: Mapping[str, str], where: Where, problems: Problems, models: Collection[str] | None
) -> None:
    for key, template in prompts.items():
        prompt, _, model = key.partition(".")
        if prompt not in PROMPTS:
            problems.add((*where, key), f"there is no prompt {prompt!r}{hint(prompt, PROMPTS, or_all=True)}")
            continue
        if model and models is not None and model not in models:
            message = f"there is no model {model!r}{hint(model, models)}; write {prompt} or {prompt}.MODEL"
            problems.add((*where, key), message)
        _check_template((*where, key), problems, prompt, template)


def _check_template(where: Where, problems: Problems, prompt: str, template: str) -> None:
    variables = sorted(VARIABLES[prompt])
    try:
        unknown = unknown_variables(prompt, template)
        if not unknown:
            template.format(**dict.fromkeys(variables, ""))
    except (ValueError, LookupError, AttributeError) as error:
        problems.add(where, f"{error}; write braces that belong to the text twice, {{{{ and }}}}")
        return
    for name in unknown:
        near = hint(name, variables, f"; there are {', '.join(variables)}, and braces of the text are written twice")
        problems.add(where, f"there is no variable {{{name}}}{near}")
