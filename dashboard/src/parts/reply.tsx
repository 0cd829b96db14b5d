// The form for an event that a job waits for: a person approves, or answers, on the job's page.

import { useState } from "preact/hooks";
import { ask, path, type Asked, type Problem } from "../api";
import { refreshAll } from "../feed";
import { barred, me } from "../session";
import type { JsonSchema } from "../types";
import type { Json, Step } from "../wire";
import { Button, Mono, Panel } from "./basics";
import { CopyAs, shell } from "./copy";
import { attempt } from "./dialog";
import { Trouble } from "./empty";
import { usePayload } from "./form";
import { toast } from "./toast";

export function Reply({ step }: { step: Step }) {
  const payload = usePayload({ schema: step.schema as JsonSchema | null, of: step.name, none: "This event has no fields.", rows: 4 });
  const [problem, setProblem] = useState<Problem | Error>();
  const [busy, setBusy] = useState(false);
  const why = barred("produce") ?? (me.value?.queues ? "This needs a token for all queues" : undefined);
  const request = (): Asked => ({ method: "POST", path: path(["events"]), body: { name: step.event!, ...(step.key ? { key: step.key } : {}), payload: payload.read() } });
  const preview = attempt(request);
  const told = (preview?.body as Record<string, Json> | undefined)?.payload;

  async function send(event: Event): Promise<void> {
    event.preventDefault();
    setProblem(undefined);
    try {
      const asked = request();
      setBusy(true);
      await ask(asked);
      toast(`Sent ${step.event}`);
      refreshAll();
    } catch (error) {
      setProblem(error as Problem);
    }
    setBusy(false);
  }

  return (
    <Panel title={<>Waits for <Mono>{step.event}</Mono></>} acts={step.key && <span class="soft">key <Mono>{step.key}</Mono></span>}>
      <form class="reply" aria-label={`Send ${step.event}`} onSubmit={(event) => void send(event)}>
        {payload.fields}
        {problem && ("title" in problem ? <Trouble problem={problem as Problem} /> : <p class="refusal" role="alert">{problem.message}</p>)}
        <footer>
          {preview && <CopyAs asked={preview} cli={shell("holdfast", "event", "send", step.event!, JSON.stringify(told), ...(step.key ? ["--key", step.key] : []))} />}
          <Button submit look="primary" icon="play" why={why} disabled={busy}>Send {step.event}</Button>
        </footer>
      </form>
    </Panel>
  );
}
