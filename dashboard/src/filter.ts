// The part of the filter language that a page needs: splitting a filter and inserting a term.
// Only the database decides what a filter means.

export interface Term {
  text: string;
  field: string | null;
  value: string;
  not: boolean;
}

const TERM = /(?:[^\s"]|"(?:\\.|[^"\\])*"?)+/g;

export function terms(filter: string): Term[] {
  return (filter.match(TERM) ?? []).map((text) => {
    const not = text.startsWith("-");
    const bare = not ? text.slice(1) : text;
    const at = bare.startsWith('"') ? -1 : bare.indexOf(":");
    return at < 0 ? { text, field: null, value: bare, not } : { text, field: bare.slice(0, at), value: bare.slice(at + 1), not };
  });
}

/** The value of a field's only term; null if it has none. */
export function value(filter: string, field: string): string | null {
  return terms(filter).find((term) => term.field === field && !term.not)?.value ?? null;
}

/** The filter with a field's terms replaced by one; null leaves the field out. */
export function put(filter: string, field: string, wanted: string | null): string {
  const rest = terms(filter).filter((term) => term.field !== field || term.not);
  const texts = rest.map((term) => term.text);
  if (wanted !== null) texts.unshift(`${field}:${word(wanted)}`);
  return texts.join(" ");
}

/** The filter without one of its terms. */
export function drop(filter: string, index: number): string {
  return terms(filter)
    .filter((_, at) => at !== index)
    .map((term) => term.text)
    .join(" ");
}

/** A value, quoted for the filter language if necessary. */
export function word(text: string): string {
  return /^[^\s",*\\]+$/.test(text) ? text : '"' + text.replaceAll("\\", "\\\\").replaceAll('"', '\\"') + '"';
}

/** Terms of one field and value each, side by side. */
export const all = (...pairs: [string, string][]): string => pairs.map(([field, text]) => `${field}:${word(text)}`).join(" ");
