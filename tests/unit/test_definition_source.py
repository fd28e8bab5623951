"""The default source of a folder is the name of its project, and always a valid name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.source import check_source, source_of


@pytest.mark.parametrize(
    ("directory", "source"),
    [
        ("/code/shop/definitions", "shop"),
        ("/code/shop/flows", "flows"),
        ("/code/My Shop/definitions", "My-Shop"),
        ("/code/.hidden/definitions", "hidden"),
        ("/definitions", "default"),
        ("/code/日本/definitions", "default"),
    ],
)
def test_the_project_folder_names_the_source(directory: str, source: str) -> None:
    assert source_of(Path(directory)) == source


@given(st.text(alphabet=st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_every_folder_has_a_valid_source(name: str) -> None:
    check_source(source_of(Path("/code") / name / "definitions"))
