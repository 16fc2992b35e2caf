# SPDX-License-Identifier: Apache-2.0
"""Names that look unused but that somebody else needs; each line says who.

Only ``unused.py`` reads this file; nothing imports it. It refuses a name that need not be here.
"""

# Classes and methods that libraries call.
_ResumedMariaDB, _add_to_cli, add_argument_group  # alembic, argparse
branch_labels, depends_on, down_revision  # alembic, in each revision
load_dialect_impl, process_bind_param, process_result_value, compare_values  # sqlalchemy types
impl, cache_ok, inherit_cache  # sqlalchemy types and functions
describe, take_action, check_is_admin  # prometheus_client, cliff, oslo.context
on_route, on_error, __init_subclass__  # pecan, Python
filter_rule, server_port  # oslo.messaging, healthcheck
API_NAME, API_VERSION_OPTION, DEFAULT_API_VERSION  # osc_lib plugins
make_client, build_option_parser, check_api_version
AcceleratorWeigher, AcceleratorFilter, filter_all  # nova-scheduler
weight_multiplier, weigh_objects, _weigh_object
channel_class, expect_continue, task_class, handle_read, next_channel_cleanup  # waitress
CyborgDashboard, Pools, OfferedProfiles, OwnAccelerators, Overview  # Django, Horizon
verbose_name, filter_type, filter_choices, table_classes, template_name, form_class, page_title
help_text, submit_label, preview_label, success_url, get_data, get_object_id, get_link_url
get_cancel_url, has_more_data, has_prev_data, get_totals_data, get_hosts_data, get_events_data
get_deployables_data, get_handles_data, get_history_data, get_users_data, get_operations_data
get_usage_data, get_requests_data, get_allocations_data, get_candidates_data, form_id, modal_id

# Attributes of the objects of libraries.
formatter_class, use_conf, exc_text  # argparse, oslo.policy, logging
autocommit, hide_parameters, skip_autocommit_rollback  # drivers of databases, sqlalchemy
_pre_ping, _reset_on_return, use_lifo  # sqlalchemy's pool
_SDK_CONNECTION, _TRAITS_SYNCED, _RESOURCE_CLASSES_SYNCED  # oslo.limit, placement
TTL, client_timeout, bytes_recv, response_class  # oslo.messaging, amqp, urllib3
device_name, pool_name  # protobuf
# Fields that travel as a whole, and numbers of hardware.
max_unit, min_unit, step_size, allocation_ratio  # placement/tree.Inventory
device_profile_group  # notifications/notices.AcceleratorRequestPayload
NEVER  # nvme.admin_commands.State
