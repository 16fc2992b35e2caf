# SPDX-License-Identifier: Apache-2.0
"""Soundness of the database, checked and held through random histories."""
