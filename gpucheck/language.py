"""The languages of what is said, and the operator's."""

from __future__ import annotations

import locale
import os
from typing import Final

LANGUAGES: Final = ("en", "zh")


def of_locale() -> str:
    """The language of the environment's locale: Chinese, or else English."""
    named = next((os.environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(name)), "")
    return "zh" if (named or locale.getlocale()[0] or "").lower().startswith("zh") else "en"
