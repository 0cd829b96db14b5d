import "./language";
import { render } from "preact";
import { startLive } from "./live";
import { startRates } from "./rates";
import { meet } from "./session";
import { Shell } from "./shell";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/frame.css";
import "./style/parts.css";
import "./style/pages.css";

void meet()
  .then(() => {
    startLive();
    startRates();
  })
  .catch(() => setTimeout(() => location.reload(), 5000))
  .finally(() => document.documentElement.removeAttribute("data-starting"));
render(<Shell />, document.getElementById("app")!);
