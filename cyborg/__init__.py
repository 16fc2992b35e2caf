# SPDX-License-Identifier: Apache-2.0
"""Cyborg, the accelerator life-cycle service."""

import sys

from oslo_service import backend  # noqa: TID251 - for its switch alone

# Oslo libraries import eventlet if it is installed, to see whether it has patched this process. It
# never has, and it takes 10 to 20 MiB. They have no option for that, but they all cope with an
# ImportError, which None causes; oslo.service alone has to be asked for its other backend.
sys.modules.setdefault("eventlet", None)  # type: ignore[arg-type]
backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)
