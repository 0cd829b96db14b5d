// What an operator should look at first: the detectors of the server judge, the pages only show.

import { path } from "./api";
import { useFeed, type Feed } from "./feed";
import { since } from "./format";
import type { Anomaly, Detector } from "./wire";

/** Detectors look every few seconds; after so many without a look, nobody runs upkeep. */
const BLIND = 120;

/** All that looks wrong now, the worst first. */
export const useAnomalies = (): Feed<{ anomalies: Anomaly[] }> => useFeed(path(["anomalies"], { limit: 500 }), 2000);

/** Those that somebody should look at: grave, and neither acked nor muted. */
export const pressing = (anomalies: Anomaly[]): Anomaly[] =>
  anomalies.filter((one) => !one.muted && !one.acked_at && one.severity !== "info");

/** When a detector looked last, if that is too long ago to say that nothing is wrong; null: never. */
export function useBlindSince(): string | null | undefined {
  const told = useFeed<{ detectors: Detector[] }>(path(["detectors"]), 10_000).data.value;
  if (!told) return undefined;
  const last = told.detectors.reduce<string | null>((newest, one) => (one.run_at && (!newest || Date.parse(one.run_at) > Date.parse(newest)) ? one.run_at : newest), null);
  return last !== null && since(last) < BLIND ? undefined : last;
}
