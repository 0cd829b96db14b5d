"""The addresses of workflows."""

from holdfast.server.api import produce, workflows
from holdfast.server.http import inputs
from holdfast.server.http import workflow_answers as answers
from holdfast.server.http.refusals import NOT_THERE, WRONG_STATE
from holdfast.server.http.route import Entry, Told, get, ok, post, to
from holdfast.server.routes.jobs import BEGUN
from holdfast.server.routes.tags import WORKFLOWS

_OF_WORKFLOW = {
    name: to(operation, id="/id")
    for name, operation in {
        "workflow": "getWorkflow",
        "jobs": "listWorkflowJobs",
        "cancel": "cancelWorkflow",
    }.items()
}

ROUTES: list[Entry] = [
    post(
        "/v1/workflows",
        "produce",
        produce.start_workflow,
        inputs.NewWorkflow,
        id="startWorkflow",
        tag=WORKFLOWS,
        items=inputs.NewJob,
        answers={
            201: Told(answers.StartedWorkflow, "The workflow is stored.", _OF_WORKFLOW),
            200: Told(
                answers.StartedWorkflow,
                "A live workflow has its key; `id` is that one's.",
                _OF_WORKFLOW,
            ),
        },
        example={
            "name": "album",
            "key": "album-17",
            "deadline": 3600,
            "jobs": [
                {"kind": "resize", "queue": "images", "payload": {"file": "a.png"}},
                {"kind": "resize", "queue": "images", "payload": {"file": "b.png"}},
                {"kind": "publish", "queue": "web", "after": [1, 2], "take": {"files": "all"}},
            ],
        },
    ),
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
