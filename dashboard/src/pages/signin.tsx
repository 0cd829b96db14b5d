import { useState } from "preact/hooks";
import { ask, root, signedOut, type Problem } from "../api";
import { Button } from "../parts/basics";
import { Command } from "../parts/copy";
import { Trouble } from "../parts/empty";
import { Mark } from "../parts/icon";
import { me } from "../session";

export function SignIn() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    try {
      await ask({ method: "POST", path: "/v1/session", body: { token: token.trim() } });
      signedOut.value = false;
      location.reload();
    } catch (error) {
      setProblem(error as Problem);
      setBusy(false);
    }
  }

  return (
    <main class="signin">
      <Mark />
      <h1>Sign in to Holdfast</h1>
      {me.value?.oidc && (
        <p>
          <a class="button primary" href={`${root}/oidc/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`}>Sign in with {me.value.oidc}</a>
        </p>
      )}
      <form onSubmit={(event) => void submit(event)}>
        <label class="field">
          <span>Token</span>
          <input type="password" value={token} required autofocus autocomplete="current-password" placeholder="hf_…" onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        {problem && <Trouble problem={problem} />}
        <Button submit look="primary" disabled={busy || !token.trim()}>Sign in</Button>
      </form>
      <p class="soft">Or open the one-time link that the server prints when it starts, or create a token on a machine that can reach the database:</p>
      <Command text="holdfast token create --name ada --role admin" />
    </main>
  );
}
