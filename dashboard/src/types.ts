// Types for JSON that the contract does not define.

import type { Kind as Declared, Json } from "./wire";

export interface JsonSchema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  enum?: Json[];
  const?: Json;
  default?: Json;
  anyOf?: JsonSchema[];
  format?: string;
  minimum?: number;
  maximum?: number;
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
}

/** A kind whose worker declared a schema of its payload. */
export interface Kind extends Omit<Declared, "schema"> {
  schema?: JsonSchema | null;
}
