// The version of the package that these files came with, to be compared with the server's.
export const VERSION = '0.1.0';
export const SCHEMA = 1;
