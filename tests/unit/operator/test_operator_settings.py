"""The operator's environment."""

from __future__ import annotations

import dataclasses

import pytest
from everstep_operator.core.model import Settings as Timers
from everstep_operator.settings import VARIABLES, parse_settings


def test_defaults() -> None:
    settings = parse_settings({}, identity="me")
    assert (settings.namespaces, settings.lease.enabled, settings.lease.identity, settings.lease.seconds) == (
        (),
        True,
        "me",
        4.0,
    )
    assert settings.timers == Timers()


def test_everything_can_be_said() -> None:
    env = {
        "EVERSTEP_WATCH_NAMESPACES": "a, b,",
        "EVERSTEP_LEASE_ENABLED": "false",
        "EVERSTEP_POD_NAME": "operator-1",
        "EVERSTEP_TIMER_START_WINDOW": "1.5",
        "EVERSTEP_TIMER_FAILED_PROBES": "3",
    }
    settings = parse_settings(env, identity="me")
    assert (settings.namespaces, settings.lease.enabled, settings.lease.identity) == (("a", "b"), False, "operator-1")
    assert settings.timers == dataclasses.replace(Timers(), start_window=1.5, failed_probes=3)


def test_every_wrong_variable_is_told_at_once() -> None:
    env = {
        "EVERSTEP_IMAGE_PULL_POLICY": "Sometimes",
        "EVERSTEP_API_PORT": "http",
        "EVERSTEP_TIMER_HELLO_DEADLINE": "-1",
        "EVERSTEP_TIMER_NO_SUCH": "1",
    }
    with pytest.raises(ValueError, match="environment is wrong") as caught:
        parse_settings(env, identity="me")
    assert all(name in str(caught.value) for name in env)


def test_every_variable_is_explained() -> None:
    assert all(text for _, text in VARIABLES.values())
