// Every command by its name.

import { useState } from "preact/hooks";
import { togglePause } from "../live";
import { go } from "../route";
import { barred } from "../session";
import { places } from "../shell";
import { switchTheme } from "../theme";
import { zone } from "../format";
import { Modal } from "./dialog";
import { openEnqueue } from "./enqueue";
import { Icon, type IconName } from "./icon";

interface Command {
  name: string;
  icon: IconName;
  act: () => void;
}

export function Palette({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const found = commands().filter((one) => matches(one.name, text));
  const run = (command: Command | undefined) => {
    if (!command) return;
    close();
    command.act();
  };
  return (
    <Modal title="Commands" close={close}>
      <input
        class="palette-input"
        value={text}
        autofocus
        placeholder="Type a command"
        aria-label="Command"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette"
        aria-activedescendant={found[at] ? `palette-${at}` : undefined}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
          else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
          else if (event.key === "Enter") run(found[at]);
          else return;
          event.preventDefault();
        }}
      />
      <ul class="palette" id="palette" role="listbox" aria-label="Commands">
        {found.map((one, index) => (
          <li key={one.name} id={`palette-${index}`} role="option" aria-selected={index === at} onClick={() => run(one)} onPointerMove={() => setAt(index)}>
            <Icon name={one.icon} />
            {one.name}
          </li>
        ))}
      </ul>
    </Modal>
  );
}

function commands(): Command[] {
  return [
    ...places.map((place): Command => ({ name: `Go to ${place.title}`, icon: place.icon, act: () => go(place.name === "overview" ? "" : place.name) })),
    ...(barred("produce") ? [] : [{ name: "Enqueue a job", icon: "plus" as const, act: () => openEnqueue() }]),
    { name: "Show dead jobs as a list", icon: "jobs", act: () => go("jobs?q=state%3Adead") },
    { name: "Show running jobs", icon: "jobs", act: () => go("jobs?q=state%3Aleased") },
    { name: "Pause or resume live updates", icon: "pause", act: togglePause },
    { name: "Switch between light and dark", icon: "moon", act: switchTheme },
    { name: "Switch between UTC and local time", icon: "clock", act: () => (zone.value = zone.value === "utc" ? "local" : "utc") },
  ];
}

function matches(name: string, text: string): boolean {
  let at = 0;
  for (const letter of text.toLowerCase().replaceAll(" ", "")) {
    at = name.toLowerCase().indexOf(letter, at) + 1;
    if (!at) return false;
  }
  return true;
}
