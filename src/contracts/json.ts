// The JSON value types that cross contracts: records, plugin data and journal rows are plain JSON.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };
