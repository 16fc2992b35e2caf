# SPDX-License-Identifier: Apache-2.0
"""The conductor: it carries out the work that the API and reports record in the database."""
