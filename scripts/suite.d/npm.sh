# npm: packages with programs are installed, run, listed, installed anew, removed. Needs the npm registry.
suite_install() { apt_need npm:npm node:nodejs; }

suite_run() {
  export npm_config_cache=$T/cache npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
  mkdir p
  cd p || return
  printf 'const x: number = 1; console.log(x)\n' >a.ts
  step init npm init -y
  step install npm install express@4 typescript@5 prettier@3
  step list npm ls --all
  step program-is-a-link test -L node_modules/.bin/tsc
  step compile npx tsc a.ts
  step run node a.js
  step require node -e 'require("express")()'
  step format npx prettier --write a.ts
  step clean-install npm ci --prefer-offline
  step dedupe npm dedupe --prefer-offline
  step pack npm pack
  step uninstall npm uninstall prettier
  step prune npm prune --offline
  step verify-cache npm cache verify
}
