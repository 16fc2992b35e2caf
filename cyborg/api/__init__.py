# SPDX-License-Identifier: Apache-2.0
"""The REST API: a Pecan application behind a paste pipeline."""
