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
    usage,
)


def list_rules() -> list[policy.RuleDefault]:
    """Every rule of Cyborg, for the enforcer and for ``oslopolicy-sample-generator``."""
    return [
        *base.list_rules(),
        *device_profile.list_rules(),
        *arq.list_rules(),
        *allocation.list_rules(),
        *device.list_rules(),
        *deployable.list_rules(),
        *attribute.list_rules(),
        *service.list_rules(),
        *operation.list_rules(),
        *function_pool.list_rules(),
        *history.list_rules(),
        *host.list_rules(),
        *usage.list_rules(),
        *attach_handle.list_rules(),
    ]
