# SPDX-License-Identifier: Apache-2.0
"""Pages with facts, tables and links, lists, and forms; a refusal is shown as its sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from django import shortcuts, urls
from django.http import HttpRequest, HttpResponse
from horizon import exceptions, forms, messages, tables

from cyborg_dashboard import api
from cyborg_dashboard.api import Page, Row
from cyborg_dashboard.tables import text, words

T = TypeVar("T")


class _Asking:
    """A view that asks the API."""

    request: HttpRequest

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: By the name of a table, whether there are rows before and after those that it shows.
        self.more: dict[str, Page] = {}
        self._said: set[str] = set()

    def ask(self, question: Callable[[api.Cyborg], T], otherwise: T) -> T:
        """The answer; where there is none the user is told why."""
        try:
            return question(api.cyborg(self.request))
        except api.Refused as exc:
            if str(exc) not in self._said:
                messages.error(self.request, str(exc))
            self._said.add(str(exc))
            return otherwise

    def rows(
        self, table: type[tables.DataTable], collection: str, query: Mapping[str, Any]
    ) -> list[Row]:
        """The page of a collection that a table is to show."""
        meta, given = table._meta, self.request.GET  # noqa: SLF001 - Horizon's own views read it
        place = {
            "after": given.get(meta.pagination_param, ""),
            "before": given.get(meta.prev_pagination_param, ""),
        }
        page = self.ask(lambda cyborg: cyborg.page(collection, query, **place), Page([]))
        self.more[meta.name] = page
        return page.rows

    def has_more_data(self, table: tables.DataTable) -> bool:
        """Whether there is a next page."""
        return self.more.get(table.name, Page([])).has_after

    def has_prev_data(self, table: tables.DataTable) -> bool:
        """Whether there is a page before."""
        return self.more.get(table.name, Page([])).has_before


class ListView(_Asking, tables.DataTableView):
    """A list of a collection, which can be narrowed and has pages."""

    template_name = "cyborg_dashboard/page.html"
    collection: ClassVar[str]

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """What the template shows."""
        return super().get_context_data(**kwargs) | {"page_tables": [self.get_table()]}

    def get_data(self) -> list[Row]:
        """The page."""
        return self.rows(self.table_class, self.collection, self.get_filters())


class PageView(_Asking, tables.MultiTableView):
    """A page about one thing: its facts, what can be done with it, and tables."""

    template_name = "cyborg_dashboard/page.html"
    #: The page to return to where the thing cannot be shown; None shows an empty page.
    index: ClassVar[str | None] = None

    def thing(self, _cyborg: api.Cyborg) -> Row:
        """What the page is about; nothing by itself."""
        return {}

    def facts(self) -> Row:
        """What is told of it before the tables."""
        return self.shown

    def links(self) -> list[tuple[str, str]]:
        """What can be done with it: labels and addresses."""
        return []

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show it."""
        found = self.ask(self.thing, None)
        if found is None and self.index is not None:
            raise exceptions.Http302(urls.reverse(self.index))
        self.shown: Row = found or {}
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """What the template shows."""
        facts = ((words(name), text(value)) for name, value in self.facts().items())
        return super().get_context_data(**kwargs) | {
            "facts": [each for each in facts if each[0] != "Links" and each[1] is not None],
            "links": self.links(),
            "page_tables": self.get_tables().values(),
        }


class Form(forms.SelfHandlingForm):
    """A form that sends a request to the API."""

    #: The page to lead to afterwards, if it is not the view's.
    leads_to: str | None = None

    def send(self, cyborg: api.Cyborg, data: dict[str, Any]) -> str:
        """Do what the form is for; return what has been done, as a sentence."""
        raise NotImplementedError

    def handle(self, request: HttpRequest, data: dict[str, Any]) -> Any:
        """Do it, and say what came of it; False shows the form again."""
        try:
            messages.success(request, self.send(api.cyborg(request), data))
        except api.Refused as exc:
            messages.error(request, str(exc))
            return False
        return shortcuts.redirect(self.leads_to) if self.leads_to else True


class FormView(_Asking, forms.ModalFormView):
    """A form on a page of its own, or in a dialog."""

    template_name = "cyborg_dashboard/form.html"
    modal_id, form_id = "accelerator_dialog", "accelerator_form"
    help_text = preview_label = ""
    #: The policy rule of what the form asks for.
    rule = ""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show it to those only whom the API would serve."""
        if not api.may(request, self.rule):
            raise exceptions.NotAuthorized
        return super().dispatch(request, *args, **kwargs)

    def get_cancel_url(self) -> str:
        """Where one is led who does not want it."""
        return str(self.get_success_url())

    def get_initial(self) -> dict[str, Any]:
        """What the address says."""
        return {**super().get_initial(), **self.kwargs}
