"""Views of a namespace, as far as no session is needed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pulsark.datasource.catalog import register_topics
from pulsark.datasource.options.errors import OptionError


def test_views_do_not_keep_the_filters_of_their_first_query() -> None:
    with pytest.raises(OptionError, match="option 'pushdown' is for one query of a DataFrame"):
        register_topics(cast(Any, None), pushdown="true")
