"""Which votes are people's, and what is read about those of judges."""

from __future__ import annotations

import numpy as np
import pytest

from p2l.common.errors import VoteError
from p2l.people import find_people
from p2l.people.voters import by_people
from p2l.votes import open_votes
from tests.p2l.people.people_votes import cast, sourced


def test_people_are_found_by_their_usual_names() -> None:
    assert find_people(["human", "gpt-judge"], None, "votes") == "human"
    assert find_people(["people", "gpt-judge", None], None, "votes") == "people"
    assert find_people(["crowd", "gpt-judge"], "crowd", "votes") == "crowd"
    assert find_people(["human"], None, "votes") is None
    assert find_people([], None, "votes") is None


def test_a_column_of_another_meaning_is_left_alone() -> None:
    assert find_people(["wildchat", "sharegpt"], None, "votes") is None


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(VoteError, match=r"votes: no vote has the source 'humen' \(did you mean 'human'\?\)"):
        find_people(["human", "gpt-judge"], "humen", "votes")
    with pytest.raises(VoteError, match="votes: no vote has a source; a column 'source' must say 'human'"):
        find_people([None], "human", "votes")


def test_judges_have_families_and_people_have_names() -> None:
    rng = np.random.default_rng(0)
    rows = [*cast(30, "human", rng), *cast(30, "judge: bee-9", rng), *cast(20, "judge", rng)]
    rows[0] |= {"source": None, "voter": None}
    votes = sourced(rows)
    assert votes.judges == ["judge", "judge: bee-9"]
    assert votes.by_people.sum() == 30
    assert votes.own.tolist() == [[0.0] * 9, [float(name.startswith("bee")) for name in votes.models]]
    assert votes.voters == ["voter-0", "voter-1"]
    assert (votes.voter[~votes.by_people] == -1).all()
    assert votes.voter[0] == -1
    won_a = np.array([row["winner"] != "model_b" for row in rows])
    longer = np.array([row["length_a"] > row["length_b"] for row in rows])
    np.testing.assert_array_equal(votes.length > 0, longer == won_a)
    part = votes.take(votes.by_people)
    assert len(part) == 30
    assert part.judges == votes.judges


def test_without_judges_all_votes_are_peoples() -> None:
    import pandas as pd

    with open_votes(pd.DataFrame(cast(10, "human", np.random.default_rng(0)))) as store:
        assert by_people(store, None).all()
        assert not by_people(store, "nobody").any()
