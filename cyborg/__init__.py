# SPDX-License-Identifier: Apache-2.0
"""Cyborg, the accelerator life-cycle service."""

import warnings

# Libraries import it where it is installed, and it complains. Nothing here uses it.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
