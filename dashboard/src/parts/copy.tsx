// Shows the command or request for each action of the dashboard.

import { useState } from "preact/hooks";
import { root, type Asked } from "../api";
import { me } from "../session";
import { Icon } from "./icon";
import { toast } from "./toast";

export async function copy(text: string, what = "Copied"): Promise<void> {
  try {
    if (!navigator.clipboard) throw new Error();
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS, browsers do not allow the clipboard API; the old way still works there.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(what);
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      class="button quiet small bare"
      aria-label={label}
      title={label}
      onClick={() => {
        void copy(text);
        setDone(true);
        setTimeout(() => setDone(false), 1200);
      }}
    >
      <Icon name={done ? "check" : "copy"} />
    </button>
  );
}

const SQL = /^(select|alter|grant|vacuum|reindex|analyze|drop)\b/;

/** A command to type, in a shell or psql, with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <div class={SQL.test(text) ? "command sql" : "command"}>
      <code>{text}</code>
      <CopyButton text={text} label={`Copy: ${text}`} />
    </div>
  );
}

export function CopyAs({ asked, then, cli }: { asked?: Asked; then?: Asked; cli?: string }) {
  const web = [asked, then].filter((one) => one !== undefined).map(curl).join(" && ");
  return (
    <div class="copy-as">
      <span class="soft">Copy as</span>
      {cli && (
        <button type="button" class="link" onClick={() => void copy(cli, "Command copied")} title={cli}>
          holdfast
        </button>
      )}
      {web && (
        <button type="button" class="link" onClick={() => void copy(web, "curl copied")} title={web}>
          curl
        </button>
      )}
    </div>
  );
}

export function curl({ method, path, body }: Asked): string {
  const words = ["curl", quote(location.origin + root + path)];
  if (method !== "GET" && !(method === "POST" && body !== undefined)) words.push("-X", method);
  if (me.value && me.value.via !== "open") words.push("-H", '"Authorization: Bearer $HOLDFAST_TOKEN"');
  if (body !== undefined) words.push("-H", quote("Content-Type: application/json"), "-d", quote(JSON.stringify(body)));
  return words.join(" ");
}

/** A word, quoted for a shell. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
}

export const shell = (...words: (string | false | null | undefined)[]): string =>
  words.filter((word): word is string => typeof word === "string").map(quote).join(" ");
