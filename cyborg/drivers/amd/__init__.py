# SPDX-License-Identifier: Apache-2.0
"""GPUs of AMD."""
