"""What an operator may say of single models and of classes of callers: tables of the settings."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .errors import PronkError
from .names import parse_name

MOST_REPLICAS = 512


class ModelLimits(BaseModel):
    """What holds for one model."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    min_replicas: int = Field(default=0, ge=0, le=MOST_REPLICAS)
    """Replicas that stay loaded, whether anybody asks for them or not."""

    max_replicas: int | None = Field(default=None, ge=1, le=MOST_REPLICAS)
    """Most replicas that are loaded at a time; where it is not set, as many as there is room for.
    """

    devices: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Names of the devices that it may be loaded on; where it is not set, all of them."""

    preload: bool = False
    """Whether it is loaded when the server starts, before anybody asks for it."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas is more than max_replicas")
        return self

    @property
    def most(self) -> float:
        """Replicas that there may be at a time."""
        return float("inf") if self.max_replicas is None else self.max_replicas


NO_LIMITS = ModelLimits()
"""What holds for a model of which nothing is said."""


class CallerClass(BaseModel):
    """Callers whose waiting requests have the same weight."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    weight: float = Field(default=1.0, ge=0.001, le=1000, allow_inf_nan=False)
    """Share of the work that each of these callers is given while others wait, too: with 4, four
    times as much as one whom no class names, whose weight is 1."""

    callers: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(min_length=1)
    """Who belongs to it: subjects, or patterns with `*`. Without authentication, callers are known
    by their address: `anonymous@10.0.0.7`, `anonymous@10.0.*`, `anonymous@2001:db8:1:2::/64`. The
    class that names a caller exactly counts, else the first with a pattern for it."""


def canonical_limits(limits: dict[str, ModelLimits]) -> dict[str, ModelLimits]:
    """The same by canonical names: `demo` is `demo:latest`.

    Raises ValueError for what is no model's name, or is the same as another one.
    """
    canonical: dict[str, ModelLimits] = {}
    for name, of_model in limits.items():
        try:
            full = parse_name(name).canonical
        except PronkError as error:
            raise ValueError(error.message) from None
        if full in canonical:
            raise ValueError(f"names {full} twice")
        canonical[full] = of_model
    return canonical


def one_class_each(classes: dict[str, CallerClass]) -> dict[str, CallerClass]:
    """The same classes. Raises ValueError where two of them name the same caller."""
    names: dict[str, str] = {}
    for name, of_class in classes.items():
        for caller in of_class.callers:
            other = names.setdefault(caller, name)
            if other != name:
                raise ValueError(f"{caller} is in class {other} and in class {name}")
    return classes
