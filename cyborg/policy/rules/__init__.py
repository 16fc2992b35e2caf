# SPDX-License-Identifier: Apache-2.0
"""Default policy rules: one module per resource, and the base rules that they share."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import (
    allocation,
    arq,
    attach_handle,
    attribute,
    base,
    deployable,
    device,
    device_profile,
    function_pool,
    history,
    host,
    operation,
    service,
    summary,
    usage,
)


def list_rules() -> list[policy.RuleDefault]:
    """Every rule of Cyborg, for the enforcer and for ``oslopolicy-sample-generator``."""
    requests = (device_profile, arq, allocation)
    hardware = (device, deployable, attribute, service, operation, function_pool)
    records = (history, host, summary, usage, attach_handle)
    modules = (base, *requests, *hardware, *records)
    return [rule for module in modules for rule in module.RULES]
