"""The warnings that proxbit gives, so that a user can filter them."""

from __future__ import annotations


class SettingsWarning(UserWarning):
    """The chosen settings cannot work on the given weights."""
