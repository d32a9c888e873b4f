"""The words of a prompt, in any script; no torch.

Words are Unicode words, folded to lower case; scripts written without spaces (Han, Kana, Thai, Lao, Burmese, Khmer)
go character by character; digits and signs stand alone.
"""

from __future__ import annotations

import re
import unicodedata

from p2l.encoding import repair

__all__ = ["SPACELESS", "split_words"]

_NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# \w leaves out combining marks, without which words of Indic, Arabic and Hebrew scripts fall apart.
_MARKS = "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"
SPACELESS = re.compile(f"[{_NO_SPACES}]")
"""A character of a script that is written without spaces."""
_WORD = re.compile(rf"[{_NO_SPACES}]|\d|(?:(?![{_NO_SPACES}\d])[\w{_MARKS}'’])+|[^\w\s]")


def split_words(text: str) -> list[str]:
    """The words of one turn, in order."""
    return _WORD.findall(unicodedata.normalize("NFKC", repair(text)).casefold())
