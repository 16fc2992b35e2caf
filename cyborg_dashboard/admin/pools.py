# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Function Pools: slots of functions that are programmed ahead of demand."""

from __future__ import annotations

from typing import Any

from django import urls
from horizon import forms

from cyborg_dashboard import api, pages
from cyborg_dashboard.admin import acts
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import link, table

_HERE, _RULE = "horizon:admin:accelerator_pools", "cyborg:function_pool"


_POOLS = table(
    *("pools", "Function Pools", "name", "function_id", "hosts", "wanted", "ready", "used"),
    *("pending", "reason"),
    table_actions=(link("create", "Create Pool", f"{_HERE}:create", f"{_RULE}:create"),),
    row_actions=(
        link("edit", "Edit", f"{_HERE}:edit", f"{_RULE}:update"),
        *acts.row_actions("function_pools"),
    ),
)


class PoolForm(pages.Form):
    """The fields of a pool, new or not."""

    name = forms.CharField(max_length=200)
    function_id = forms.CharField(max_length=128)
    free = forms.IntegerField(min_value=0, help_text="Slots that are to be free.")
    max_devices = forms.IntegerField(min_value=1, help_text="Deployables that may run it.")
    description = forms.CharField(required=False)
    image_uuid = forms.CharField(required=False, help_text="Otherwise the newest image.")
    hosts = forms.CharField(required=False, help_text="Which hosts, for example fpga-*.")
    traits = forms.CharField(required=False, help_text="Traits that it needs, between commas.")

    def send(self, cyborg: api.Cyborg, data: dict[str, Any]) -> str:
        """Create the pool, or change it."""
        cyborg.need(api.NEWEST)
        body = {key: value for key, value in data.items() if value not in (None, "")}
        body["traits"] = [each.strip() for each in data["traits"].split(",") if each.strip()]
        uuid = self.initial.get("uuid")
        if uuid is None:
            cyborg.call("POST", "/function_pools", body=body)
        else:
            cyborg.call("PUT", f"/function_pools/{uuid}", body=body)
        return f"Saved: {data['name']}"


class PoolsView(pages.ListView):
    """The list."""

    page_title = "Function Pools"
    table_class = _POOLS
    collection = "function_pools"


class PoolView(pages.FormView):
    """The form, for a new pool or for one that there is."""

    form_class = PoolForm
    page_title = "Function Pool"
    submit_label = "Save"
    success_url = urls.reverse_lazy(f"{_HERE}:index")

    def get_initial(self) -> dict[str, Any]:
        """The pool as it is."""
        if not self.kwargs:
            return {}
        path = f"/function_pools/{self.kwargs['uuid']}"
        pool: Row = self.ask(lambda cyborg: cyborg.call("GET", path), {})
        return {**pool, "traits": ", ".join(pool.get("traits", ())), **self.kwargs}


urlpatterns = [
    urls.path("", PoolsView.as_view(), name="index"),
    urls.path("create/", PoolView.as_view(rule=f"{_RULE}:create"), name="create"),
    urls.path("edit/<uuid:uuid>/", PoolView.as_view(rule=f"{_RULE}:update"), name="edit"),
    *acts.urlpatterns("function_pools"),
]
