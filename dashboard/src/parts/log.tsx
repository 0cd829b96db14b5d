// What the handler of a job logs while it runs. New lines are fetched when the stream says that there are some.

import { effect, signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { look, path } from "../api";
import { absolute, plural } from "../format";
import { beat, lastLines, liveness, paused } from "../live";
import type { Job, Line, Lines } from "../wire";
import { Panel } from "./basics";
import { CopyAs, CopyButton, shell } from "./copy";

// As many as the server keeps, and as often as the page refreshes.
const MOST = 1000;
const EVERY = 1000;

export function LiveLog({ job }: { job: Job }) {
  const lines = useLines(job.id);
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  if (!lines.length) return null;
  const several = lines[0]!.attempt !== lines.at(-1)!.attempt;
  const noteScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current!;
    atEnd.current = scrollHeight - scrollTop - clientHeight < 20;
  };
  return (
    <Panel
      title="Log"
      acts={
        <>
          <span class="soft number">{plural(lines.length, "line")}</span>
          <CopyAs cli={shell("holdfast", "job", "log", job.id, "--follow")} asked={{ method: "GET", path: path(["jobs", job.id, "log"]) }} />
        </>
      }
    >
      <div class="json">
        <CopyButton text={lines.map((line) => shown(line.text)).join("\n")} label="Copy log" />
        <pre class="traceback" ref={box} tabIndex={0} role="log" aria-live="off" aria-label="Log of the job" onScroll={noteScroll}>
          {lines.map((line, index) => (
            <span key={line.nth} title={absolute(line.at)}>
              {several && line.attempt !== lines[index - 1]?.attempt && <span class="faded">{`attempt ${line.attempt}\n`}</span>}
              {shown(line.text)}
              {"\n"}
            </span>
          ))}
        </pre>
      </div>
    </Panel>
  );
}

/** The lines of a job, and those that come while the component is shown. */
function useLines(id: string): Line[] {
  const [lines, setLines] = useState<Line[]>([]);
  useEffect(() => {
    const known = signal<Line[]>([]);
    let over = false;
    let askedAt = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    setLines([]);
    const load = async () => {
      timer = undefined;
      askedAt = Date.now();
      const after = known.peek().at(-1)?.nth ?? 0;
      try {
        const found = await look<Lines>(path(["jobs", id, "log"], { after }));
        // Another request may have brought some of these meanwhile.
        const last = known.peek().at(-1)?.nth ?? 0;
        const fresh = found.lines.filter((line) => line.nth > last);
        if (over || !fresh.length) return;
        known.value = [...known.peek(), ...fresh].slice(-MOST);
        setLines(known.peek());
      } catch {
        // The page shows what is wrong with the job itself; the next beat tries again.
      }
    };
    const stop = effect(() => {
      beat.value;
      const told = lastLines.value[id];
      const last = known.value.at(-1)?.nth ?? 0;
      // Without the stream nobody says that there are lines.
      const news = askedAt === 0 || liveness.peek() !== "live" || (told !== undefined && told > last);
      if (!news || timer || document.hidden || paused.peek()) return;
      timer = setTimeout(() => void load(), askedAt === 0 ? 0 : Math.max(0, askedAt + EVERY - Date.now()));
    });
    return () => {
      over = true;
      stop();
      clearTimeout(timer);
    };
  }, [id]);
  return lines;
}

const COLOURS = /\u001b\[[0-9;]*m/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** A line without the colours of a terminal; other control characters are shown, not obeyed. */
const shown = (text: string) => text.replace(COLOURS, "").replace(CONTROLS, (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));
