// The steps of a job: what each did and returned, how long it took, and what the job waits for.

import { useState } from "preact/hooks";
import { absolute, coarse, count, duration, endless, now, since } from "../format";
import type { Step } from "../wire";
import { Button, Mono, Time } from "./basics";
import { Icon, type IconName } from "./icon";
import { JsonView } from "./json";

const SHOWN = 50;

/** Whether the job still sleeps, or waits for the step's event. */
export const waits = (step: Step): boolean => step.kind !== "step" && (step.ended_at === null || Date.parse(step.ended_at) > now.value);

export function Steps({ steps }: { steps: Step[] }) {
  const [whole, setWhole] = useState(false);
  const shown = whole ? steps : steps.slice(-SHOWN);
  const hidden = steps.length - shown.length;
  return (
    <>
      {hidden > 0 && (
        <p class="pad">
          <Button small onClick={() => setWhole(true)}>Show {count(hidden)} earlier steps</Button>
        </p>
      )}
      <ol class="steps" aria-label="Steps">
        {shown.map((step) => (
          <li key={step.name} data-step={step.name}>
            <StepIcon step={step} />
            <div class="step-what">
              <Mono>{step.name}</Mono>
              <span class="soft">{what(step)}</span>
            </div>
            <span class="step-took number">{took(step)}</span>
            <span class="step-when soft number">
              <Time at={step.began_at} />
              {step.attempt > 1 && <small>attempt {step.attempt}</small>}
            </span>
            {step.result !== null && step.result !== undefined && <JsonView value={step.result} label={`result of ${step.name}`} />}
          </li>
        ))}
      </ol>
    </>
  );
}

function StepIcon({ step }: { step: Step }) {
  const [mood, icon, label]: [string, IconName, string] = step.timed_out
    ? ["paused", "clock", "timed out"]
    : !waits(step)
      ? ["done", "done", "done"]
      : step.kind === "sleep"
        ? ["queued", "clock", "sleeping"]
        : ["queued", "circle", "waiting"];
  return (
    <span class={`state ${mood}`}>
      <Icon name={icon} label={label} />
    </span>
  );
}

/** What the step is or was about; nothing if its name says it all. */
function what(step: Step) {
  const event = (
    <>
      event <Mono>{step.event}</Mono>
      {step.key && <>, key <Mono>{step.key}</Mono></>}
    </>
  );
  if (step.kind === "sleep") return waits(step) ? <>sleeps until {absolute(step.until ?? step.ended_at!)}, for another {coarse(-since(step.until ?? step.ended_at!, now.value))}</> : "slept";
  if (step.kind !== "event") return null;
  if (step.timed_out) return <>no {event} came in time</>;
  if (!waits(step)) return <>received {event}</>;
  return <>waits for {event}{step.until && !endless(step.until) ? `, until ${absolute(step.until)}` : ", without a time limit"}</>;
}

/** How long the step ran, slept or waited. */
function took(step: Step): string {
  const end = waits(step) ? now.value : Date.parse(step.ended_at!);
  return duration(Math.max(0, (end - Date.parse(step.began_at)) / 1000));
}
