# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Device Profiles: made of what the cloud has, and where they would fit."""

from __future__ import annotations

import re
import uuid
from typing import Any

from django import http, urls
from horizon import forms, messages

from cyborg_dashboard import api, pages
from cyborg_dashboard.admin import acts
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import link, table

_HERE = "horizon:admin:accelerator_profiles"
#: The groups that the form has room for.
_GROUPS = (1, 2, 3)
_MORE = "Further keys between commas, for example accel:function_id=aes."
#: The traits that the API takes.
_TRAIT = re.compile(r"(CUSTOM|HW|MISC|STORAGE)_\w+")


_CREATE, _WHERE = "cyborg:device_profile:create", "cyborg:device_profile:candidates"


def _has_fits(row: Row) -> bool:
    return "fits" in row


_PROFILES = table(
    *("profiles", "Device Profiles", "name", "groups", "description", "visibility", "enabled"),
    *("in_use", "fits", "warnings"),
    table_actions=(link("create", "Create Profile", f"{_HERE}:create", _CREATE, in_dialog=False),),
    row_actions=(
        link("where", "Where It Fits", f"{_HERE}:candidates", _WHERE, _has_fits, in_dialog=False),
        *acts.row_actions("device_profiles"),
    ),
)
_CANDIDATES = table(
    *("candidates", "Hosts, the best first", "hostname", "group", "deployable_uuid", "preferred"),
    "reprogram", key=("hostname", "group"),
)


class ProfileForm(pages.Form):
    """A profile; each group has a resource class and traits of this cloud."""

    name = forms.CharField(max_length=255)
    description = forms.CharField(required=False)
    projects = forms.CharField(
        required=False, help_text="Ids of the projects that may use it, between commas; else all."
    )

    def __init__(self, request: http.HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        classes = [("", "no such group"), *((each, each) for each in self.initial["classes"])]
        traits = [(each, each) for each in self.initial["traits"]]
        for number in _GROUPS:
            fields = {
                "class": forms.ChoiceField(choices=classes, required=number == 1),
                "amount": forms.IntegerField(min_value=1, initial=1, required=False),
                "traits": forms.MultipleChoiceField(choices=traits, required=False),
                "more": forms.CharField(required=False, help_text=_MORE),
            }
            for name, field in fields.items():
                field.label = f"Group {number}: {name}"
                self.fields[f"{name}_{number}"] = field

    def send(self, cyborg: api.Cyborg, data: dict[str, Any]) -> str:
        """Create it, and lead to where it fits."""
        body: Row = {"name": data["name"], "groups": _groups(data)}
        body |= {"description": data["description"]} if data["description"] else {}
        projects = [each.strip() for each in data["projects"].split(",") if each.strip()]
        body |= {"visibility": "private", "projects": projects} if projects else {}
        made = cyborg.call("POST", "/device_profiles", body=body if cyborg.is_newest else [body])
        if cyborg.is_newest:
            self.leads_to = urls.reverse(f"{_HERE}:candidates", args=(made["uuid"],))
        return f"Created: {data['name']}"

    def handle(self, request: http.HttpRequest, data: dict[str, Any]) -> Any:
        """Create it, or only say whether there is room for it now."""
        if "preview" not in request.POST:
            return super().handle(request, data)
        try:
            _say_room(request, _groups(data))
        except api.Refused as exc:
            messages.error(request, str(exc))
        return False


def _groups(data: dict[str, Any]) -> list[dict[str, str]]:
    groups = []
    for number in _GROUPS:
        if name := data[f"class_{number}"]:
            group = {f"resources:{name}": str(data[f"amount_{number}"] or 1)}
            group |= {f"trait:{trait}": "required" for trait in data[f"traits_{number}"]}
            pairs = (each.partition("=") for each in data[f"more_{number}"].split(",") if each)
            groups.append(group | {key.strip(): value.strip() for key, _, value in pairs})
    return groups


def _say_room(request: http.HttpRequest, groups: list[dict[str, str]]) -> None:
    """Have an allocation tried that takes nothing."""
    cyborg = api.cyborg(request)
    cyborg.need(api.NEWEST)
    consumer = {"uuid": str(uuid.uuid4()), "type": "PREVIEW"}
    body = {"consumer": consumer, "groups": groups, "dry_run": True}
    found = cyborg.call("POST", "/allocations", body=body)
    # Without the right to ask for candidates one is told no host.
    where = f", first of all on {', '.join(found['hosts'])}" if found["hosts"] else ""
    if found["state_reason"] is None:
        messages.info(request, f"It fits now{where}.")
    else:
        messages.warning(request, found["state_reason"])


class ProfilesView(pages.ListView):
    """The list."""

    page_title = "Device Profiles"
    table_class = _PROFILES
    collection = "device_profiles"


class CreateView(pages.FormView):
    """The form."""

    form_class = ProfileForm
    rule = _CREATE
    page_title = submit_label = "Create Profile"
    preview_label = "Where Would It Fit Now?"
    success_url = urls.reverse_lazy(f"{_HERE}:index")

    def get_initial(self) -> dict[str, Any]:
        """The resource classes that Cyborg has, and the traits that Placement has."""
        none: list[str] = []
        return {"classes": self.ask(_classes, none), "traits": self.ask(self._traits, none)}

    def _traits(self, _cyborg: api.Cyborg) -> list[str]:
        version = {"OpenStack-API-Version": "placement 1.6"}
        found = api.look_up(self.request, "placement", "/traits?associated=true", **version)
        return sorted(filter(_TRAIT.fullmatch, found["traits"]))


def _classes(cyborg: api.Cyborg) -> list[str]:
    if not cyborg.is_newest:
        return ["FPGA", "GPU", "PGPU", "VGPU"]
    found = cyborg.call("GET", "/summary", query={"limit": 1})["totals"]
    return [row["resource_class"] for row in found]


class CandidatesView(pages.PageView):
    """Where a profile fits, now."""

    page_title = "Where It Fits"
    index = f"{_HERE}:index"
    table_classes = (_CANDIDATES,)

    def thing(self, cyborg: api.Cyborg) -> Row:
        """The places, and why there is none."""
        cyborg.need(api.NEWEST)
        path = f"/device_profiles/{self.kwargs['uuid']}/candidates"
        found: Row = cyborg.call("GET", path, query={"limit": api.page_size(self.request)})
        return found

    def facts(self) -> Row:
        """Why there is none."""
        return {"why_nowhere": self.shown["reason"]}

    def get_candidates_data(self) -> list[Row]:
        """A row for each group."""
        found = self.shown["candidates"]
        return [{"hostname": each["hostname"], **one} for each in found for one in each["groups"]]


urlpatterns = [
    urls.path("", ProfilesView.as_view(), name="index"),
    urls.path("create/", CreateView.as_view(), name="create"),
    urls.path("candidates/<uuid:uuid>/", CandidatesView.as_view(), name="candidates"),
    *acts.urlpatterns("device_profiles"),
]
