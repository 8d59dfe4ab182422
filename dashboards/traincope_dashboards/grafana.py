"""Grafana's HTTP API through grafana-client; each refusal becomes one sentence."""

from collections.abc import Callable, Mapping
from typing import Protocol, cast

from grafana_client.api import GrafanaApi
from grafana_client.client import GrafanaClientError, GrafanaException, GrafanaTimeoutError
from niquests.exceptions import JSONDecodeError, RequestException

from traincope.errors import ServerError, UsageError
from traincope.urls import is_url

Json = Mapping[str, object]
TIMEOUT_SECONDS = 10.0
CONFLICTS = (409, 412)


class _Client(Protocol):
    """The used part of grafana-client's client."""

    def GET(self, url: str) -> object: ...  # noqa: N802 - the client's own names

    def POST(self, url: str, *, json: Json) -> object: ...  # noqa: N802

    def PUT(self, url: str, *, json: Json) -> object: ...  # noqa: N802


class Refused(ServerError):
    """Grafana answered and refused."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Grafana:
    """A running Grafana. Every method raises ServerError if it fails; an invalid URL raises UsageError."""

    def __init__(self, url: str, *, token: str) -> None:
        if not is_url(url):
            raise UsageError(f"{url!r} is not the URL of a Grafana: write e.g. http://127.0.0.1:3000")
        self.url = url.rstrip("/")
        # Without the slash the client would ask for /grafanaapi if Grafana is below a path.
        api = GrafanaApi.from_url(f"{self.url}/", credential=token, timeout=TIMEOUT_SECONDS)
        self._client = cast(_Client, api.client)

    def version(self) -> str:
        """Grafana's version. Raises ServerError if the URL does not belong to a Grafana."""
        health = self.find("/health")
        if health is None or "database" not in health:
            raise self._alien()
        return str(health.get("version", "of unknown version"))

    def find(self, path: str) -> Json | None:
        """The object at `path`; None if it does not exist."""
        try:
            return self._ask(lambda: self._client.GET(path))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def create(self, path: str, content: Json) -> Json:
        return self._ask(lambda: self._client.POST(path, json=content))

    def change(self, path: str, content: Json) -> Json:
        return self._ask(lambda: self._client.PUT(path, json=content))

    def _ask(self, request: Callable[[], object]) -> Json:
        try:
            answer = request()
        except GrafanaTimeoutError as error:
            raise ServerError(f"{self.url} does not answer within {TIMEOUT_SECONDS:g} s") from error
        except GrafanaClientError as error:
            raise Refused(self._sentence(error), status=error.status_code) from error
        except GrafanaException as error:
            raise ServerError(f"{self.url} failed: {error.message}; see Grafana's own log") from error
        except JSONDecodeError:
            answer = None
        except RequestException as error:
            raise ServerError(f"{self.url} cannot be reached: {_cause(error)}") from error
        if isinstance(answer, list):
            return {"items": answer}
        if not isinstance(answer, dict):
            raise self._alien()
        return answer

    def _alien(self) -> ServerError:
        return ServerError(f"{self.url} answers, but is not a Grafana; give the URL that shows its start page")

    def _sentence(self, error: GrafanaClientError) -> str:
        message = _message(error)
        if error.status_code == 401:
            return (
                f"{self.url} does not know the token ({message}); create one in Grafana: Administration,"
                " Service accounts, role Editor (Admin for a data source)"
            )
        if error.status_code == 403:
            return f"{self.url} denies permission ({message}); the token's role must be Editor, for a data source Admin"
        if error.status_code in CONFLICTS:
            return (
                f"{self.url} has a different object there ({message}); rename or remove it in Grafana, or push "
                "--overwrite"
            )
        return f"{self.url} refuses ({error.status_code}: {message})"


def _message(error: GrafanaClientError) -> str:
    """Grafana's own message, which the client wraps."""
    response: object = error.response
    if isinstance(response, dict) and isinstance(response.get("message"), str):
        return str(response["message"])
    return str(error.message).splitlines()[0][:200]


def _cause(error: BaseException) -> str:
    """The innermost reason, without the library's own wrapping."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error).splitlines()[0] if str(error) else type(error).__name__
