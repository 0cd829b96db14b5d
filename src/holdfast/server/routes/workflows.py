"""The addresses of workflows."""

from holdfast.server.api import workflows
from holdfast.server.http import inputs
from holdfast.server.http import workflow_answers as answers
from holdfast.server.http.refusals import NOT_THERE, WRONG_STATE
from holdfast.server.http.route import Entry, get, ok, post
from holdfast.server.routes.jobs import BEGUN
from holdfast.server.routes.tags import WORKFLOWS

ROUTES: list[Entry] = [
    get(
        "/v1/workflows",
        "read",
        workflows.listed,
        inputs.WorkflowPage,
        id="listWorkflows",
        tag=WORKFLOWS,
        answers=ok(answers.WorkflowPage),
    ),
    get(
        "/v1/workflows/{id}",
        "read",
        workflows.shown,
        id="getWorkflow",
        tag=WORKFLOWS,
        answers=ok(answers.WorkflowShown),
        refuses=(NOT_THERE,),
    ),
    get(
        "/v1/workflows/{id}/jobs",
        "read",
        workflows.jobs,
        inputs.WorkflowJobs,
        id="listWorkflowJobs",
        tag=WORKFLOWS,
        answers=ok(answers.WorkflowJobs),
        refuses=(NOT_THERE,),
    ),
    post(
        "/v1/workflows/{id}/cancel",
        "operate",
        workflows.cancel,
        inputs.Reason,
        id="cancelWorkflow",
        tag=WORKFLOWS,
        answers=BEGUN,
        refuses=(NOT_THERE, WRONG_STATE),
    ),
    post(
        "/v1/workflows/{id}/retry",
        "operate",
        workflows.retry,
        inputs.WorkflowRetried,
        id="retryWorkflow",
        tag=WORKFLOWS,
        answers=BEGUN,
        refuses=(NOT_THERE, WRONG_STATE),
    ),
]
