// What an operator should look at first. The detectors of the server decide; the pages only show it.

import { path } from "./api";
import { useFeed, type Feed } from "./feed";
import { since } from "./format";
import type { Anomaly, Detector } from "./wire";

/** Detectors run every few seconds; if none has run for this long, upkeep is not running. */
const BLIND = 120;

/** All current anomalies, the worst first. */
export const useAnomalies = (): Feed<{ anomalies: Anomaly[] }> => useFeed(path(["anomalies"], { limit: 500 }), 2000);

/** Anomalies that need attention: severe, and neither acknowledged nor muted. */
export const pressing = (anomalies: Anomaly[]): Anomaly[] =>
  anomalies.filter((one) => !one.muted && !one.acked_at && one.severity !== "info");

/** When detectors last ran, if that is too long ago to claim that there are no problems; null: never. */
export function useBlindSince(): string | null | undefined {
  const told = useFeed<{ detectors: Detector[] }>(path(["detectors"]), 10_000).data.value;
  if (!told) return undefined;
  const last = told.detectors.reduce<string | null>((newest, one) => (one.run_at && (!newest || Date.parse(one.run_at) > Date.parse(newest)) ? one.run_at : newest), null);
  return last !== null && since(last) < BLIND ? undefined : last;
}
