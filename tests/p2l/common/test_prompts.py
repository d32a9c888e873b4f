"""What bounds a prompt: text that people write passes as it is, and no run of marks is sorted by more than a few."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.prompts import MAX_MARKS, cut_marks, newest_turns

WRITTEN = {
    "Hindi": "नमस्ते दुनिया! मुझे हिन्दी में एक छोटी कहानी सुनाइए।",
    "Thai": "สวัสดีชาวโลก ช่วยเขียนเรื่องสั้นให้หน่อยได้ไหม น้ำใจ",
    "Arabic": "بِسْمِ ٱللَّٰهِ ٱلرَّحْمَٰنِ ٱلرَّحِيمِ، مَرْحَبًا بِالْعَالَمِ",
    "Hebrew": "בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם וְאֵת הָאָרֶץ",
    "Vietnamese": unicodedata.normalize("NFD", "Tiếng Việt có những dấu thanh đặc biệt, nghiêng ngả"),
    "Latin": unicodedata.normalize("NFD", "Où était l'élève naïve? Ångström, Škoda, façade, ẗḧë"),
    "Tibetan": "བོད་སྐད་ཀྱི་དཔེ་ཆ། ཀྵྀ",
    "Japanese": unicodedata.normalize("NFD", "ガラスのコップでビールを飲むパパ") + "ﾊﾟﾊﾟ",
    "Korean": unicodedata.normalize("NFD", "안녕하세요 세계"),
    "Zalgo": "".join(letter + "\u0301\u0316\u0489\u035c" * 5 for letter in "he comes"),
    "emoji": "👩\u200d👩\u200d👧 1\ufe0f\u20e3 🏴\U000e0067\U000e0062\U000e007f",
}
MARKS = "\u0301\u0316\u05b0\u064b\u0e38\u0f73\u0344\uff9e\u20dd\U0001d165\U0001e944"


@pytest.mark.parametrize("language", WRITTEN)
def test_what_people_write_passes_unchanged(language: str) -> None:
    text = WRITTEN[language]
    assert cut_marks(text) is text or cut_marks(text) == text
    assert cut_marks(text * 100) == text * 100


@pytest.mark.parametrize("marks", ["\u0301", "\u0301\u0316", "\u0f73\u0f71", "\uff9e\u0301", "\U0001e944\U0001e948"])
def test_a_run_of_marks_is_cut_and_all_else_stays(marks: str) -> None:
    run = marks * 40_000
    assert cut_marks(f"before a{run} after é{run}x") == f"before a{run[:MAX_MARKS]} after é{run[:MAX_MARKS]}x"
    assert cut_marks(run) == run[:MAX_MARKS]


@given(st.text(st.sampled_from("a ｶ각\u0f40\u200d\u034f" + MARKS), max_size=300), st.sampled_from(MARKS))
def test_no_run_that_normalisation_sorts_is_long(text: str, mark: str) -> None:
    whole = text + mark * 50 + text
    for form in ("NFD", "NFKD"):
        longest = run = 0
        for char in unicodedata.normalize(form, cut_marks(whole)):  # type: ignore[arg-type]
            run = run + 1 if unicodedata.combining(char) else 0
            longest = max(longest, run)
        assert longest <= 3 * MAX_MARKS + 3  # a mark may stand for three, and follow a letter that has three
    assert cut_marks(cut_marks(whole)) == cut_marks(whole)


@given(st.lists(st.text(max_size=12), min_size=1), st.integers(1, 8), st.integers(1, 40))
def test_the_newest_turns_are_the_end_of_the_prompt(turns: list[str], max_turns: int, max_chars: int) -> None:
    newest = newest_turns(turns, max_turns=max_turns, max_chars=max_chars)
    assert 1 <= len(newest) <= max_turns
    assert "".join(newest) == "".join(turns[-max_turns:])[-max_chars:]
    if len(turns) <= max_turns and sum(map(len, turns)) <= max_chars:
        assert newest is turns
    else:
        assert turns[len(turns) - len(newest) + 1 :] == newest[1:]
        assert turns[len(turns) - len(newest)].endswith(newest[0])
