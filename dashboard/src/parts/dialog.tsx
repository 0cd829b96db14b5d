// Confirmation dialogs. Every action uses one, and every one can be copied as a command.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { ask, type Asked, type Problem } from "../api";
import { refreshAll } from "../feed";
import { Button } from "./basics";
import { CopyAs } from "./copy";
import { Trouble } from "./empty";
import { Icon } from "./icon";
import { toast } from "./toast";

export interface Field {
  name: string;
  label: string;
  hint?: string;
  value?: string;
  options?: { value: string; label: string }[];
  lines?: number;
  required?: boolean;
  mono?: boolean;
  placeholder?: string;
}

/** An action: a request, the equivalent command, and the message afterwards. */
export interface Deed<T = unknown> {
  asked: Asked;
  /** A second request that follows a first that worked. */
  then?: Asked;
  cli?: string;
  said: string | ((answer: T) => ComponentChildren);
}

export interface Question<T = unknown> {
  title: string;
  body?: ComponentChildren;
  fields?: Field[];
  /** A word that has to be typed first, for actions that cannot be undone. */
  word?: string;
  act: string;
  /** The button that does nothing; by default "Cancel", which would mislead where the action cancels jobs. */
  dismiss?: string;
  bad?: boolean;
  /** May refuse by throwing an Error, whose message is shown. */
  deed: (values: Record<string, string>) => Deed<T>;
  after?: (answer: T) => void;
}

// eslint-disable-next-line @typescript-eslint/no-explicit-any
const asked = signal<Question<any> | null>(null);

export function confirm<T>(question: Question<T>): void {
  asked.value = question;
}

export function Confirmation() {
  const question = asked.value;
  return question && <Asking key={question.title} question={question} />;
}

function Asking({ question }: { question: Question }) {
  const start = Object.fromEntries((question.fields ?? []).map((field) => [field.name, field.value ?? ""]));
  const [values, setValues] = useState<Record<string, string>>(start);
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | Error>();
  const close = () => (asked.value = null);
  const preview = attempt(() => question.deed(values));

  async function act(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setProblem(undefined);
    try {
      const deed = question.deed(values);
      let answer = await ask(deed.asked);
      if (deed.then) answer = await ask(deed.then);
      close();
      toast(typeof deed.said === "string" ? deed.said : deed.said(answer));
      refreshAll();
      question.after?.(answer);
    } catch (error) {
      setProblem(error as Problem);
      setBusy(false);
    }
  }

  return (
    <Modal title={question.title} close={close}>
      <form onSubmit={(event) => void act(event)}>
        {question.body && <div class="modal-body">{question.body}</div>}
        {question.fields?.map((field, index) => (
          <FieldRow key={field.name} field={field} value={values[field.name] ?? ""} first={index === 0} set={(value) => setValues((known) => ({ ...known, [field.name]: value }))} />
        ))}
        {question.word && (
          <label class="field">
            <span>
              Type <b class="mono">{question.word}</b> to confirm
            </span>
            <input value={typed} autocomplete="off" onInput={(event) => setTyped(event.currentTarget.value)} />
          </label>
        )}
        {problem && ("title" in problem ? <Trouble problem={problem as Problem} /> : <p class="refusal" role="alert">{problem.message}</p>)}
        <footer>
          {preview ? <CopyAs asked={preview.asked} then={preview.then} cli={preview.cli} /> : <span />}
          <div class="modal-acts">
            <Button look="quiet" onClick={close}>{question.dismiss ?? "Cancel"}</Button>
            <Button submit look={question.bad ? "danger" : "primary"} disabled={busy || (question.word !== undefined && typed.trim() !== question.word)}>
              {question.act}
            </Button>
          </div>
        </footer>
      </form>
    </Modal>
  );
}

export function FieldRow({ field, value, set, first }: { field: Field; value: string; set: (value: string) => void; first?: boolean }) {
  const shared = { value, required: field.required, placeholder: field.placeholder, autofocus: first };
  return (
    <label class="field">
      <span>
        {field.label} {field.hint && <small>{field.hint}</small>}
      </span>
      {field.options ? (
        <select value={value} onChange={(event) => set(event.currentTarget.value)}>
          {field.options.map((option) => (
            <option key={option.value} value={option.value}>
              {option.label}
            </option>
          ))}
        </select>
      ) : field.lines ? (
        <textarea class={field.mono ? "mono" : ""} rows={field.lines} spellcheck={false} {...shared} onInput={(event) => set(event.currentTarget.value)} />
      ) : (
        <input class={field.mono ? "mono" : ""} autocomplete="off" {...shared} onInput={(event) => set(event.currentTarget.value)} />
      )}
    </label>
  );
}

/** A window above the page; the browser keeps the focus in it and gives it back. */
export function Modal({ title, close, children, side = false }: { title: string; close: () => void; children: ComponentChildren; side?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const shown = dialog.current!;
    const before = document.activeElement as HTMLElement | null;
    shown.showModal();
    shown.querySelector<HTMLElement>("[autofocus]")?.focus();
    return () => {
      shown.close();
      // The list may have been rendered again; then focus the element at the same place.
      if (before?.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={side ? "drawer" : "modal"}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onMouseDown={(event) => {
        if (event.target === dialog.current) close();
      }}
    >
      <div class="modal-card">
        <header>
          <h2>{title}</h2>
          <button type="button" class="button quiet bare small" aria-label="Close" onClick={close}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** What is made, or undefined if it cannot be made yet. */
export function attempt<T>(make: () => T): T | undefined {
  try {
    return make();
  } catch {
    return undefined;
  }
}
